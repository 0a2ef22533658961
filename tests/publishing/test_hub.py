"""With the real client, against a Hub on the loopback interface."""

import json
import shutil
import warnings

import pytest
import yaml
from huggingface_hub import ModelCard, parse_eval_result_entries, snapshot_download

from tests.helpers.loopback_hub import Repo
from tests.helpers.models import make_model, make_tokenizer
from tests.helpers.publishing import CARD, RESULTS, set_config
from trl_consistency import ConsistencyError
from trl_consistency.cli import main as cli
from trl_consistency.folder_lock import LOCK
from trl_consistency.publishing import Benchmark, Result, publish, write_results
from trl_consistency.publishing.results import EVAL_RESULTS


PAGE = {
    "README.md",
    "adapter_config.json",
    "adapter_model.safetensors",
    "chat_template.jinja",
    "consistency_results.json",
    "tokenizer.json",
    "tokenizer_config.json",
}


def of_page(folder):
    return {name: (folder / name).read_bytes() for name in PAGE}


def test_one_command_publishes_the_folder(hub, adapter_dir, tmp_path, capsys):
    cli(["push", str(adapter_dir), "me/bct"])
    assert f"Published: {hub.url}/me/bct" in capsys.readouterr().out
    assert not hub.repos["models/me/bct"].private
    downloaded = snapshot_download("me/bct", local_dir=tmp_path / "downloaded", cache_dir=tmp_path / "cache")
    assert {path.name for path in (tmp_path / "downloaded").iterdir() if path.is_file()} == PAGE
    for name, content in of_page(adapter_dir).items():
        assert (tmp_path / "downloaded" / name).read_bytes() == content, name
    card = ModelCard.load(f"{downloaded}/README.md")
    assert "from `me/bct`" in card.text
    assert json.loads((adapter_dir / "adapter_config.json").read_text())["revision"] == "abc123"


def test_a_finished_folder_with_a_state_is_completed_and_a_checkpoint_is_not(hub, adapter_dir, tmp_path, capsys):
    """`trainer.save_state()` writes the state beside the model, without what a run is resumed from."""
    (adapter_dir / "trainer_state.json").write_text("{}")
    checkpoint = shutil.copytree(adapter_dir, tmp_path / "checkpoint-2")
    (adapter_dir / "optimizer.pt").unlink()
    before = (adapter_dir / "README.md").read_bytes()
    for folder, name in ((adapter_dir, "me/bct"), (checkpoint, "me/checkpoint")):
        cli(["push", str(folder), name])
        assert "trainer_state.json" not in hub.files(name)
        assert f"from `{name}`" in hub.files(name)["README.md"].decode()
        is_said = f"{folder} is a checkpoint and was not changed" in capsys.readouterr().out
        assert is_said == (folder == checkpoint) == ((folder / "README.md").read_bytes() == before)


@pytest.mark.filterwarnings("ignore:It seems that you are about to commit a data file")
def test_options(hub, adapter_dir):
    example = (
        'model = AutoPeftModelForCausalLM.from_pretrained("{}")\ntokenizer = AutoTokenizer.from_pretrained("{}")\n'
    )
    (adapter_dir / "README.md").write_text(CARD + example.replace("{}", "path/to/this/folder"))
    cli(["push", str(adapter_dir), "me/bct", "--private", "--revision", "v2", "--include", "completions/*"])
    repo = hub.repos["models/me/bct"]
    assert repo.private
    assert not repo.branches["main"]
    assert set(repo.branches["v2"]) == {*PAGE, "completions/a.parquet"}
    of_branch = example.replace('"{}"', '"me/bct", revision="v2"')
    assert of_branch in (adapter_dir / "README.md").read_text()


@pytest.mark.filterwarnings("ignore:The Hub has no")
def test_a_public_page_is_not_taken_for_a_private_one(hub, adapter_dir):
    cli(["push", str(adapter_dir), "me/bct"])
    before = hub.files("me/bct")
    with pytest.raises(SystemExit, match="me/bct is public already, and only a new repository is made private"):
        cli(["push", str(adapter_dir), "me/bct", "--private"])
    assert hub.files("me/bct") == before


@pytest.mark.filterwarnings("ignore:The Hub has no", "ignore:It seems that you are about to commit a data file")
def test_patterns_given_one_by_one(hub, adapter_dir):
    (adapter_dir / "notes.txt").write_text("Notes.")
    cli(["push", str(adapter_dir), "me/bct", "--include", "notes.txt", "--include", "completions/*"])
    assert {"notes.txt", "completions/a.parquet"} < set(hub.files("me/bct"))


def test_dry_run_sends_and_writes_nothing(hub, adapter_dir, capsys):
    before = of_page(adapter_dir)
    cli(["push", str(adapter_dir), "me/bct", "--dry_run"])
    said = capsys.readouterr().out
    assert not hub.requests
    assert of_page(adapter_dir) == before
    for line in (
        "  adapter_model.safetensors (",
        "  optimizer.pt: a pickle, which can run code when it is loaded",
        "  training_args.bin: a pickle",
        "  _targets/: training data",
        "  completions/: training data",
        "  pairs.jsonl: training data",
    ):
        assert line in said, line


def test_second_push_sends_no_weights_and_makes_no_empty_commit(hub, adapter_dir):
    publish(adapter_dir, "me/bct")
    once = of_page(adapter_dir)
    publish(adapter_dir, "me/bct")
    assert of_page(adapter_dir) == once
    assert len(hub.repos["models/me/bct"].commits) == 1
    (adapter_dir / "README.md").write_text((adapter_dir / "README.md").read_text() + "\nMore.\n")
    publish(adapter_dir, "me/bct", commit_message="More")
    assert hub.repos["models/me/bct"].commits[1:] == ["More"]
    assert sum(request.startswith("PUT") for request in hub.requests) == 1


def test_checkpoint_is_left_as_it_is(hub, adapter_dir):
    (adapter_dir / "trainer_state.json").write_text("{}")
    before = of_page(adapter_dir)
    publish(adapter_dir, "me/bct")
    assert of_page(adapter_dir) == before
    assert b"from `me/bct`" in hub.files("me/bct")["README.md"]
    assert "trainer_state.json" not in hub.files("me/bct")


FAULTS = {
    "401": (
        "POST /api/repos/create|GET /api/models",
        401,
        {},
        r"does not know the token \(401\): run `hf auth login`",
    ),
    "403": ("POST /api/repos/create|GET /api/models", 403, {}, r"may not write to me/bct \(403\)"),
    "429": ("commit/main", 429, {"Retry_After": "37"}, r"too many requests \(429\): try again in 37 seconds"),
    "429 in the upload": ("PUT /lfs", 429, {}, r"too many requests \(429\): try again later"),
    "500": ("objects/batch", 500, {}, r"the Hub failed \(500\): try again later"),
    "400": ("commit/main", 400, {}, r"the Hub refused it \(400\): as asked for"),
    "404": ("preupload", 404, {}, r"the Hub has no me/bct, or the token may not see it \(404\)"),
    "a connection that drops in the upload": (
        "PUT /lfs",
        None,
        {},
        r"the connection to the Hub failed \((?!Runtime)\w+Error: ",
    ),
    "a connection that drops in the commit": (
        "commit/main",
        None,
        {},
        r"the connection to the Hub failed \(\w+Error: ",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize(("pattern", "status", "headers", "message"), FAULTS.values(), ids=FAULTS)
def test_failed_push_loses_nothing_and_is_repeated(hub, adapter_dir, pattern, status, headers, message):
    hub.fail(pattern, status, **headers)
    with pytest.raises(ConsistencyError, match=message) as error:
        publish(adapter_dir, "me/bct")
    assert "\n" not in str(error.value)
    assert f"`trl-consistency push {adapter_dir} me/bct` goes on from here" in str(error.value)
    complete = of_page(adapter_dir)  # written before anything was sent
    assert b"from `me/bct`" in complete["README.md"]
    assert not any(repo.branches["main"] for repo in hub.repos.values())  # all or nothing
    hub.faults.clear()
    publish(adapter_dir, "me/bct")
    assert hub.files("me/bct") == complete == of_page(adapter_dir)


def test_the_command_that_goes_on_keeps_the_options(hub, adapter_dir, monkeypatch):
    """Without them, what should be private would be published for all, on the main branch."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    options = {"private": True, "revision": "v2", "include": ["completions/*"]}
    with pytest.raises(ConsistencyError) as error:
        publish(adapter_dir, "me/bct", **options)
    command = f"`trl-consistency push {adapter_dir} me/bct --private --revision v2 --include 'completions/*'`"
    assert f"{command} goes on from here" in str(error.value)
    (adapter_dir / "trainer_state.json").write_text("{}")  # a checkpoint, into which no name is written
    set_config(adapter_dir, base_model_name_or_path="/data/base")
    with pytest.raises(ConsistencyError, match=r"me/bct --base_model me/base` goes on from here"):
        publish(adapter_dir, "me/bct", base_model="me/base")


def test_passing_fault_is_waited_out(hub, adapter_dir):
    hub.fail("PUT /lfs", None, times=1)
    hub.fail("objects/batch", 500, times=2)
    publish(adapter_dir, "me/bct")
    assert hub.waits == [1, 2, 1]
    assert hub.files("me/bct") == of_page(adapter_dir)


def test_without_a_token(hub, adapter_dir, monkeypatch, tmp_path):
    from huggingface_hub import constants

    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    with pytest.raises(SystemExit, match="there is no token: run `hf auth login` or set HF_TOKEN"):
        cli(["push", str(adapter_dir), "me/bct"])
    assert not hub.requests


def test_unknown_token(hub, adapter_dir):
    with pytest.raises(ConsistencyError, match=r"does not know the token \(401\)"):
        publish(adapter_dir, "me/bct", token="another")


def test_offline(adapter_dir, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "a token")
    with pytest.raises(ConsistencyError, match="HF_HUB_OFFLINE is set"):
        publish(adapter_dir, "me/bct")


@pytest.mark.parametrize("name", ["bct", "me/bct/two", "me/b c", "-me/bct", "./bct", ""])
def test_names_that_are_none(adapter_dir, name):
    with pytest.raises(ConsistencyError, match="is not a name on the Hub: write `user/name`"):
        publish(adapter_dir, name)


def test_local_base_model_needs_a_name(hub, adapter_dir):
    set_config(adapter_dir, base_model_name_or_path="/data/models/base", revision="old")
    with pytest.raises(ConsistencyError, match=r"The base model is /data/models/base, .* `--base_model user/name`"):
        publish(adapter_dir, "me/bct")
    publish(adapter_dir, "me/bct", base_model="me/base")
    config = json.loads(hub.files("me/bct")["adapter_config.json"])
    assert (config["base_model_name_or_path"], config["revision"]) == ("me/base", None)
    assert b"base_model: me/base\n" in hub.files("me/bct")["README.md"]


def test_folder_beside_the_run_is_a_local_base_model(adapter_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs" / "base").mkdir()
    set_config(adapter_dir, base_model_name_or_path="outputs/base")
    with pytest.raises(ConsistencyError, match="The base model is outputs/base, which nobody else can load"):
        publish(adapter_dir, "me/bct")


def test_a_base_model_that_was_local_in_training_is_so_from_every_folder(adapter_dir):
    """From another working directory, `models/base` was taken for somebody else's model on the Hub."""
    set_config(adapter_dir, base_model_name_or_path="models/base")
    card = ModelCard((adapter_dir / "README.md").read_text())
    link = "[Qwen](https://huggingface.co/Qwen/Qwen3-4B-Instruct-2507)"
    assert link in card.text
    card.text, card.data.base_model = card.text.replace(link, "a local model"), None
    (adapter_dir / "README.md").write_text(str(card))
    with pytest.raises(ConsistencyError, match="The base model is models/base, which nobody else can load"):
        publish(adapter_dir, "me/bct", dry_run=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        publish(adapter_dir, "me/bct", base_model="me/base", dry_run=True)


@pytest.mark.parametrize("name", ["plot.png", "LICENSE", "chat_template.jinja", "README.md", "model.safetensors"])
def test_links_are_not_followed(adapter_dir, tmp_path, name, hub):
    outside = tmp_path / "secret"
    outside.write_bytes((adapter_dir / name).read_bytes() if (adapter_dir / name).exists() else b"secret")
    (adapter_dir / name).unlink(missing_ok=True)
    (adapter_dir / name).symlink_to(outside)
    with pytest.raises(ConsistencyError, match=rf"{name} is a symbolic link, which is not followed"):
        publish(adapter_dir, "me/bct", dry_run=True)


def test_linked_folder_and_linked_include_are_refused(adapter_dir, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "a.jinja").write_text("secret")
    link = adapter_dir / "additional_chat_templates"
    link.symlink_to(tmp_path / "outside")
    with pytest.raises(ConsistencyError, match="additional_chat_templates is a symbolic link"):
        publish(adapter_dir, "me/bct", dry_run=True)
    link.unlink()
    (adapter_dir / "notes").mkdir()
    (adapter_dir / "notes" / "a.txt").symlink_to(tmp_path / "outside" / "a.jinja")
    with pytest.raises(ConsistencyError, match=r"notes/a\.txt is a symbolic link"):
        publish(adapter_dir, "me/bct", include=["notes/*"], dry_run=True)


def test_links_that_are_neither_read_nor_sent_stay(adapter_dir, tmp_path, capsys):
    (adapter_dir / "checkpoint-2").mkdir()
    (adapter_dir / "checkpoint-2" / "scheduler.txt").symlink_to(tmp_path / "gone")
    (adapter_dir / "last").symlink_to(adapter_dir / "checkpoint-2")
    publish(adapter_dir, "me/bct", dry_run=True)
    assert "scheduler" not in capsys.readouterr().out.split("Stays here")[0]


def test_pictures_of_figures_that_are_not_there_stay(hub, adapter_dir, capsys):
    """Whoever removes the results of another model, as an error says, would have sent their pictures."""
    for name in ("rates.png", "outcomes.png", "mine.png"):
        (adapter_dir / name).write_bytes(b"\x89PNG")
    publish(adapter_dir, "me/bct")
    assert {"rates.png", "outcomes.png", "mine.png"} <= hub.files("me/bct").keys()
    (adapter_dir / "consistency_results.json").unlink()
    with pytest.warns(UserWarning, match="^me/bct: removed what an earlier upload left"):
        publish(adapter_dir, "me/bct")
    assert "mine.png" in hub.files("me/bct")
    assert not {"rates.png", "outcomes.png"} & hub.files("me/bct").keys()
    publish(adapter_dir, "me/bct", dry_run=True)
    assert "rates.png: a picture of figures, and there is no consistency_results.json" in capsys.readouterr().out
    publish(adapter_dir, "me/bct", include=["rates.png"])
    assert "rates.png" in hub.files("me/bct")


def test_files_of_an_earlier_model_go(hub, adapter_dir, tmp_path):
    """Left there, they would be loaded in place of the model that was sent last."""
    publish(adapter_dir, "me/bct")
    hub.files("me/bct")["notes.md"] = b"mine"
    hub.files("me/bct")["additional_chat_templates/tool_use.jinja"] = b"{{ messages }}"
    for name, size in (("single", "1GB"), ("sharded", "60KB")):
        folder = tmp_path / name
        make_model().save_pretrained(folder, max_shard_size=size)
        make_tokenizer().save_pretrained(folder)
        (folder / "README.md").write_text(CARD)
        with pytest.warns(UserWarning, match="^me/bct: removed what an earlier upload left and this model lacks: "):
            publish(folder, "me/bct", base_model="Qwen/Qwen3-4B-Instruct-2507")
        assert hub.files("me/bct").keys() - {"notes.md", ".gitattributes"} == {path.name for path in folder.iterdir()}
        assert "notes.md" in hub.files("me/bct")


def test_a_base_model_that_the_hub_lacks_is_warned_of(hub, adapter_dir):
    with pytest.warns(UserWarning, match=r"The Hub has no Qwen/Qwen3-4B-Instruct-2507, .*nobody can load the adapter"):
        publish(adapter_dir, "me/bct")
    assert "me/bct" in str(hub.repos)


def test_a_whole_model_needs_no_base_model(hub, tmp_path, recwarn):
    folder = tmp_path / "whole"
    make_model().save_pretrained(folder)
    (folder / "README.md").write_text("---\nlibrary_name: transformers\nbase_model: me/base\n---\n# whole\n")
    publish(folder, "me/whole")
    assert "me/whole" in str(hub.repos)
    assert not [found for found in recwarn if "The Hub has no" in str(found.message)]


@pytest.mark.filterwarnings("ignore:The Hub has no")
def test_the_lock_of_the_push_stays(hub, adapter_dir, capsys):
    """It names this machine, and was sent with `--include "*"`."""
    for name in ("training_args.bin", "optimizer.pt"):
        (adapter_dir / name).unlink()
    cli(["push", str(adapter_dir), "me/bct", "--include", "*"])
    assert LOCK not in hub.files("me/bct")
    assert "pairs.jsonl" in hub.files("me/bct")


def test_code_that_stays_is_warned_of(adapter_dir, tmp_path, recwarn):
    """The page of a whole model with code of its own could not be loaded, and nothing said so."""
    folder = tmp_path / "whole"
    make_model().save_pretrained(folder)
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# whole\n")
    (folder / "modeling_mine.py").write_text("x = 1\n")
    classes = {"AutoModelForCausalLM": "modeling_mine.Mine", "AutoConfig": "them/theirs--config.Theirs"}
    config = folder / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"auto_map": classes}))
    publish(folder, "me/whole", dry_run=True)
    (warned,) = (str(of.message) for of in recwarn if "auto_map" in str(of.message))
    assert "config.json names code (`auto_map`), and modeling_mine.py is not sent" in warned
    recwarn.clear()
    publish(folder, "me/whole", dry_run=True, include=["modeling_mine.py"])
    assert not any("auto_map" in str(of.message) for of in recwarn)


def test_a_base_model_that_is_there_is_not(hub, adapter_dir, recwarn):
    hub.repos["models/Qwen/Qwen3-4B-Instruct-2507"] = Repo(private=False)
    publish(adapter_dir, "me/bct")
    assert not [found for found in recwarn if "The Hub has no" in str(found.message)]


@pytest.mark.parametrize("status", [403, 429, 500])
def test_a_question_that_is_not_answered_stops_no_push(hub, adapter_dir, recwarn, status):
    hub.fail("GET /api/models/Qwen", status)
    publish(adapter_dir, "me/bct")
    assert not [found for found in recwarn if "The Hub has no" in str(found.message)]


def test_results_of_benchmarks_are_sent_where_the_hub_reads_them(hub, adapter_dir):
    """Read by the client's own reader. Results without a benchmark stay in the `model-index` alone."""
    benchmark = Benchmark("user/cues", "sycophancy", "a" * 40)
    write_results(
        adapter_dir, [*RESULTS, Result(metric="sycophancy", name="On a benchmark", value=0.125, benchmark=benchmark)]
    )
    publish(adapter_dir, "me/bct")
    sent = hub.files("me/bct")
    (entry,) = parse_eval_result_entries(yaml.safe_load(sent[EVAL_RESULTS]))
    assert (entry.dataset_id, entry.task_id, entry.dataset_revision, entry.value) == (
        "user/cues",
        "sycophancy",
        "a" * 40,
        0.125,
    )
    assert entry.source_url == "https://huggingface.co/me/bct"
    assert len(ModelCard(sent["README.md"].decode()).data.eval_results) == 3
    write_results(adapter_dir, RESULTS)
    publish(adapter_dir, "me/bct")
    assert EVAL_RESULTS not in hub.files("me/bct"), "figures of an earlier model"
    assert not (adapter_dir / EVAL_RESULTS).exists()


def test_results_of_others_in_that_folder_stay(hub, adapter_dir):
    publish(adapter_dir, "me/bct")
    hub.files("me/bct")[".eval_results/hle.yaml"] = b"- dataset: {id: cais/hle, task_id: hle}\n  value: 20.9\n"
    publish(adapter_dir, "me/bct")
    assert ".eval_results/hle.yaml" in hub.files("me/bct")
