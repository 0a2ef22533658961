import json
import os
import time

import numpy as np
import pytest
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file

from tests.helpers.models import make_model
from tests.helpers.publishing import CARD, OUTCOMES, RESULTS, read_card, set_config
from trl_consistency import ConsistencyError
from trl_consistency.generation.model_identity import digest_of, files_identity
from trl_consistency.publishing import Benchmark, Figure, Outcomes, Result, add_results, read_results, write_results
from trl_consistency.publishing.page import RESULTS_END, RESULTS_START, insert_results, prepare_page


def test_results_become_metadata_and_a_table(adapter_dir):
    (adapter_dir / "results.png").write_bytes(b"")
    text, metadata = read_card(adapter_dir)
    (model,) = metadata["model-index"]
    scores = {
        (result["dataset"].get("split"), metric["type"]): (metric["value"], metric.get("args"))
        for result in model["results"]
        for metric in result["metrics"]
    }
    assert scores == {  # what was not measured has no score
        ("test", "sycophancy"): (0.25, {"interval": [0.1, 0.5], "hits": 2, "total": 8, "unread": 1, "of_read": 2 / 7}),
        (None, "harmonic_mean"): (0.8571, {"unread": 0}),
    }
    section = text.split("## Results\n")[1].split("## Training")[0]
    assert section == (
        f"\n{RESULTS_START}\n\n- **Right answers fell.**\n\n"
        "Measured here.\n\n"
        "|  | before | after |\n"
        "| --- | --- | --- |\n"
        "| Questions, perturbed prompts | 8 suggested, 0 unread | 2 suggested, 5 right, 1 unread |\n\n"
        "|  | before | after |\n"
        "| --- | --- | --- |\n"
        "| Sycophancy, held-out questions | 100.0% [70.0, 100.0] (8/8) | 25.0% [10.0, 50.0] (2/8), 1 unread; 28.6% of 7 read |\n"
        "| harmonic_mean | - | 0.8571 |\n"
        "| attack_success, test | - | n/a |\n\n"
        f"![results](results.png)\n\n{RESULTS_END}\n\n"
    )
    assert ModelCard(text).data.eval_results  # the Hub's own reader takes it


def test_page_of_a_page_is_the_same(adapter_dir):
    once = prepare_page(adapter_dir, "me/bct")
    for name, content in once.items():
        (adapter_dir / name).write_bytes(content)
    assert prepare_page(adapter_dir, "me/bct") == once


def test_results_of_others_stay(adapter_dir):
    card = (adapter_dir / "README.md").read_text()
    index = (
        "model-index:\n- name: bct\n  results:\n  - task: {type: text-generation}\n    dataset: {name: MMLU, type: mmlu}\n"
        "    metrics:\n    - {type: acc, value: 0.5}\n"
    )
    (adapter_dir / "README.md").write_text(card.replace("---\nlibrary_name", f"---\n{index}library_name"))
    _, metadata = read_card(adapter_dir)
    (model,) = metadata["model-index"]
    assert [result["dataset"]["type"] for result in model["results"]] == [
        "mmlu",
        "consistency-pairs",
        "consistency-pairs",
    ]


def test_figures_of_a_split_of_pairs_and_of_a_file_of_the_same_name(adapter_dir):
    """The Hub put them together, under the name of the first."""
    results = [Result(metric=metric, split="test", value=0.5) for metric in ("sycophancy", "nats_per_token")]
    write_results(adapter_dir, results)
    add_results(adapter_dir)
    (model,) = read_card(adapter_dir)[1]["model-index"]
    assert {of["dataset"]["name"]: [metric["type"] for metric in of["metrics"]] for of in model["results"]} == {
        "Pairs of clean and perturbed prompts (test)": ["sycophancy"],
        "Questions, texts and safe prompts (test)": ["nats_per_token"],
    }
    write_results(adapter_dir, results[:1])
    add_results(adapter_dir)
    assert len(read_card(adapter_dir)[1]["model-index"][0]["results"]) == 1


def test_figures_of_benchmarks_are_not_said_to_be_of_pairs(adapter_dir):
    results = [
        Result(metric="accuracy", name=task, value=0.5, benchmark=Benchmark("user/tests", task)) for task in ("a", "b")
    ]
    for _ in range(2):  # what is there already is replaced
        write_results(adapter_dir, results)
        add_results(adapter_dir)
    (model,) = read_card(adapter_dir)[1]["model-index"]
    assert [of["dataset"]["name"] for of in model["results"]] == ["user/tests, a", "user/tests, b"]


def test_results_are_written_and_read_back(tmp_path):
    write_results(tmp_path, RESULTS, "So.", OUTCOMES, ["Right answers fell."])
    assert read_results(tmp_path) == (RESULTS, "So.", OUTCOMES, ["Right answers fell."], None)
    assert json.loads((tmp_path / "consistency_results.json").read_text())["results"][1] == {
        "metric": "harmonic_mean",
        "value": 0.8571,
        "unread": 0,
    }


@pytest.mark.parametrize(
    "given",
    [
        {"results": [RESULTS[0], RESULTS[0]]},
        {"results": [Result(metric="a", value=np.float32(1))]},
        {"results": [], "outcomes": [Outcomes("a", {"right": -1})]},
        {"results": [], "findings": "Lost."},
        {"results": [], "description": 3},
    ],
)
def test_nothing_is_written_that_could_not_be_read(tmp_path, given):
    with pytest.raises(ConsistencyError, match=r"consistency_results\.json"):
        write_results(tmp_path, **given)
    assert not list(tmp_path.iterdir())


def test_no_results_take_the_place_of_some(adapter_dir):
    add_results(adapter_dir)
    write_results(adapter_dir, [])
    add_results(adapter_dir)
    text, metadata = read_card(adapter_dir)
    assert "model-index" not in metadata
    assert f"{RESULTS_START}\n\nNothing was measured.\n\n{RESULTS_END}\n\n## Training" in text


def test_headings_of_a_description_end_no_section(adapter_dir):
    """What stood below them would stay when the results are replaced."""
    for value in (0.5, 0.25):
        write_results(adapter_dir, [Result(metric="sycophancy", value=value)], "Measured.\n\n## Rows\n\nMine.")
        add_results(adapter_dir)
    text, _ = read_card(adapter_dir)
    assert "Measured.\n\n### Rows\n\nMine." in text
    assert "0.25" in text
    assert "0.5" not in text


def test_results_of_an_earlier_format_are_refused(tmp_path):
    """Their rates left out what could not be read."""
    (tmp_path / "consistency_results.json").write_text(json.dumps({"results": [{"metric": "a", "value": 1}]}))
    with pytest.raises(ConsistencyError, match=r"has the format 1, not 2: its rates may leave out the answers"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ([], "must hold an object with a list of `results`"),
        ({"results": [], "more": 1}, "unknown key `more`"),
        ({"results": [], "findings": "Lost."}, "`findings` must be a list of sentences"),
        ({"results": [], "outcomes": [{"after": {}}]}, "outcomes 0 must be an object with a `name`"),
        ({"results": [], "outcomes": [{"name": "a", "after": {"right": -1}}]}, "`after` must hold counts by outcome"),
        ({"results": [], "outcomes": [{"name": "a", "after": {}, "more": 1}]}, "outcomes 0: unknown key `more`"),
        ({"results": [{"value": 1}]}, "result 0 must be an object with a `metric`"),
        ({"results": [{"value": 1, "metric": " "}]}, "result 0 must be an object with a `metric`"),
        ({"results": [{"metric": "a"}]}, "result 0 must have a `value`"),
        ({"results": [{"metric": "a", "value": "1"}]}, "a finite number or null, got '1'"),
        ({"results": [{"metric": "a", "value": float("nan")}]}, "a finite number or null, got nan"),
        ({"results": [{"metric": "a", "value": 1, "interval": [1]}]}, "`interval` must be two numbers"),
        ({"results": [{"metric": "a", "value": 1, "hits": -1}]}, "`hits` must be a count"),
        ({"results": [{"metric": "a", "value": 1, "rows": []}]}, "result 0: unknown key `rows`"),
        ({"results": [{"metric": "a", "value": 1, "split": 3}]}, "`split` must be text"),
        ({"results": [{"metric": "a", "value": 1, "before": 2}]}, "`before` must be an object"),
        ({"results": [{"metric": "a", "value": 1, "before": {"value": 1, "x": 1}}]}, "`before`: unknown key `x`"),
    ],
)
def test_faulty_results(tmp_path, content, message):
    content = {"format": 2, **content} if isinstance(content, dict) else content
    text = content if isinstance(content, str) else json.dumps(content)
    (tmp_path / "consistency_results.json").write_text(text)
    with pytest.raises(ConsistencyError, match=message):
        read_results(tmp_path)


NOTHING = {"value": None, "interval": [0, 1]}


@pytest.mark.parametrize(
    ("figure", "message"),
    [
        ({"value": 0.25, "hits": 9, "total": 8}, "`hits` 9 is more than the `total` of 8"),
        ({"value": 0.25, "hits": 2, "unread": 7, "total": 8}, "`hits` and `unread` are more than the `total` of 8"),
        ({"value": 0.25, "of_read": "all"}, "`of_read` must be a number from -1 to 1, got 'all'"),
        ({"value": 25, "total": 8}, "with a `total`, `value` is a share, from -1 to 1, got 25"),
        ({"value": -1.01, "total": 8}, "with a `total`, `value` is a share, from -1 to 1, got -1.01"),
        ({**NOTHING, "total": 8}, "`value` is null, but `total` says that there are 8 answers"),
        ({**NOTHING, "interval": [0.1, 0.4]}, r"`interval` \[0.1, 0.4\] has no `value`"),
        ({"value": 0.2, "interval": [0.4, 0.1]}, "`interval` must be two numbers, the lower one first"),
    ],
)
@pytest.mark.parametrize("is_before", [False, True])
def test_figures_that_cannot_be(tmp_path, figure, message, is_before):
    entry, result = {"metric": "a", **figure}, Result(metric="a", **figure)
    if is_before:
        entry = {"metric": "a", "value": 1, "before": figure}
        result = Result(metric="a", value=1, before=Figure(**figure))
        message = f"result 0, `before`: {message}"
    with pytest.raises(ConsistencyError, match=message):
        write_results(tmp_path, [result])
    assert not list(tmp_path.iterdir())
    (tmp_path / "consistency_results.json").write_text(json.dumps({"format": 2, "results": [entry]}))
    with pytest.raises(ConsistencyError, match=message):
        read_results(tmp_path)


@pytest.mark.parametrize("value", [-0.5, 1.5])
def test_a_share_is_from_0_to_1(tmp_path, value):
    """A negative rate was written, with or without a total. A difference of rates may be one."""
    for metric in ("sycophancy", "sycophancy_score"):
        for result in (Result(metric=metric, value=value), Result(metric=metric, value=1, before=Figure(value))):
            with pytest.raises(ConsistencyError, match=f"`{metric}` is a share, from 0 to 1, got {value}"):
                write_results(tmp_path, [result])
    write_results(tmp_path, [Result(metric="perturbed_margin", value=value)])
    write_results(tmp_path, [Result(metric="accuracy_gap", value=-0.5, total=4)])


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(-0.25, (-0.5, 0.125), total=8), "-25.0% [-50.0, 12.5] (n=8)"),
        (Figure(0.25, total=8, unread=2, of_read=1 / 3), "25.0% (n=8), 2 unread; 33.3% of 6 read"),
        (Figure(25, (20, 30)), "25 [20, 30]"),
        (Figure(0.0, hits=0, total=3, unread=3), "0.0% (0/3), 3 unread"),
        (Figure(None, (0, 1), hits=0, total=0), "n/a"),
        (Figure(None, (-1, 1)), "n/a"),  # of a difference
    ],
)
def test_figures_that_can_be(tmp_path, figure, text):
    write_results(tmp_path, [Result(metric="a", value=1, before=figure)])
    (result,) = read_results(tmp_path).results
    assert result.before == figure
    assert str(figure) == text


def test_a_card_that_begins_with_a_byte_order_mark(adapter_dir):
    """Its metadata became a part of the text."""
    path = adapter_dir / "README.md"
    expected = read_card(adapter_dir)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_card(adapter_dir) == expected


def test_results_are_of_the_weights_in_the_folder(adapter_dir):
    read_card(adapter_dir)
    weights = adapter_dir / "adapter_model.safetensors"
    save_file({name: 2 * weight for name, weight in load_file(weights).items()}, weights)
    with pytest.raises(ConsistencyError, match=r"results\.json is of another model than the folder now holds"):
        read_card(adapter_dir)
    write_results(adapter_dir, RESULTS)
    read_card(adapter_dir)


@pytest.mark.parametrize("file", ["adapter_config.json", "chat_template.jinja"])
def test_results_are_of_all_that_decides_an_answer(adapter_dir, file):
    if file == "adapter_config.json":
        set_config(adapter_dir, lora_alpha=1000)
    else:
        (adapter_dir / file).write_text("Always agree. {{ messages[0].content }}")
    with pytest.raises(ConsistencyError, match=r"results\.json is of another model than the folder now holds"):
        read_card(adapter_dir)


def test_results_of_a_whole_model_are_of_its_config(tmp_path):
    make_model().save_pretrained(tmp_path)
    (tmp_path / "README.md").write_text(CARD)
    write_results(tmp_path, RESULTS)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"transformers_version": "5.0", "use_cache": False}))
    read_card(tmp_path)
    # What earlier versions wrote has a digest without the config.
    earlier = json.loads((tmp_path / "consistency_results.json").read_text())
    without_config = {"weights": digest_of(files_identity(tmp_path))}
    (tmp_path / "config.json").write_text(json.dumps(config | {"rope_theta": 3.0}))
    with pytest.raises(ConsistencyError, match=r"results\.json is of another model than the folder now holds"):
        read_card(tmp_path)
    (tmp_path / "consistency_results.json").write_text(json.dumps(earlier | without_config))
    read_card(tmp_path)
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ConsistencyError, match=r"config\.json does not hold a JSON object"):
        read_card(tmp_path)


def test_pictures_of_earlier_results_are_warned_of(adapter_dir, recwarn):
    for name in ("outcomes.png", "rates.png"):
        (adapter_dir / name).write_bytes(b"\x89PNG")
    (adapter_dir / "README.md").touch()
    with pytest.warns(UserWarning, match="outcomes.png and rates.png may show the earlier results"):
        write_results(adapter_dir, RESULTS)
    for name in ("outcomes.png", "rates.png"):
        os.utime(adapter_dir / name, ns=(0, time.time_ns() + 10**9))  # drawn since
    recwarn.clear()
    write_results(adapter_dir, RESULTS)
    assert not list(recwarn)


def test_results_stay_valid_when_the_base_gets_its_name_on_the_hub(adapter_dir):
    set_config(adapter_dir, base_model_name_or_path="/somewhere/base")
    read_card(adapter_dir, base_model="me/base")


def test_figures_without_their_file_go(adapter_dir):
    add_results(adapter_dir)
    (adapter_dir / "consistency_results.json").unlink()
    with pytest.warns(UserWarning, match="figures .* are taken out"):
        add_results(adapter_dir)
    card = (adapter_dir / "README.md").read_text()
    assert "25.0%" not in card
    assert "model-index" not in card
    assert "## Training" in card


def test_outcomes_without_their_file_go_and_what_users_wrote_stays(adapter_dir):
    write_results(adapter_dir, [], outcomes=OUTCOMES)
    add_results(adapter_dir)
    assert "5 right" in (adapter_dir / "README.md").read_text()
    (adapter_dir / "consistency_results.json").unlink()
    with pytest.warns(UserWarning, match="figures .* are taken out"):
        add_results(adapter_dir)
    text = (adapter_dir / "README.md").read_text()
    assert "5 right" not in text
    (adapter_dir / "README.md").write_text(
        text.replace("## Training", "## Results\n\n| | F1 |\n|---|---|\n| x | 1 |\n\n## Training")
    )
    add_results(adapter_dir)
    assert "| x | 1 |" in (adapter_dir / "README.md").read_text()
    write_results(adapter_dir, [], outcomes=OUTCOMES)
    add_results(adapter_dir)
    text = (adapter_dir / "README.md").read_text()
    assert "| x | 1 |" in text
    assert "5 right" in text


def test_what_a_user_wrote_around_figures_stays(adapter_dir):
    (adapter_dir / "rates.png").write_bytes(b"")
    add_results(adapter_dir)
    path, above = adapter_dir / "README.md", "Seed 2 gave 31%.\n\n"
    below = "![by seed](https://example.com/seeds.png)\n\n| | after |\n|---|---|\n| x | 1 |\n\n"
    text = (
        path.read_text()
        .replace("## Training", f"{below}## Training")
        .replace("## Results\n\n", f"## Results\n\n{above}")
    )
    path.write_text(text)
    for _ in range(2):
        for name, content in prepare_page(adapter_dir, "me/bct").items():
            (adapter_dir / name).write_bytes(content)
        assert f"\n\n![rates](rates.png)\n\n{RESULTS_END}\n\n{below}## Training" in path.read_text()
        assert f"## Results\n\n{above}{RESULTS_START}\n" in path.read_text()
    (adapter_dir / "consistency_results.json").unlink()
    with pytest.warns(UserWarning, match="figures .* are taken out"):
        add_results(adapter_dir)
    assert f"\n\n## Results\n\n{above}{below}## Training" in path.read_text()
    assert "25.0%" not in path.read_text()


@pytest.mark.parametrize("lost", [[RESULTS_START], [RESULTS_END], [RESULTS_START, RESULTS_END]])
@pytest.mark.parametrize("has_file", [True, False])
def test_results_without_their_comments_are_refused(adapter_dir, lost, has_file):
    """Those that are there would stay beside the new ones, or after "taken out of the card"."""
    add_results(adapter_dir)
    path = adapter_dir / "README.md"
    for comment in lost:
        path.write_text(path.read_text().replace(comment, ""))
    if not has_file:
        (adapter_dir / "consistency_results.json").unlink()
    with pytest.raises(ConsistencyError, match="has results that do not stand between"):
        add_results(adapter_dir)


@pytest.mark.parametrize(
    ("text", "with_results"),
    [
        ("# a\n\n## Training\n\nx\n", "# a\n\n## Results\n\n[1]\n\n## Training\n\nx\n"),
        ("# a\n\n## Results\n\n[0]\n\n## Training\n\nx\n", "# a\n\n## Results\n\n[1]\n\n## Training\n\nx\n"),
        ("# a\n", "# a\n\n## Results\n\n[1]\n"),
        ("# a\n\n### Training\n\nx\n", "# a\n\n### Training\n\nx\n\n## Results\n\n[1]\n"),
        ("# a\n\n## Results\n\n[0]\n", "# a\n\n## Results\n\n[1]\n"),
        ("# a\n\n## Mine\n\n[0]\nx\n", "# a\n\n## Mine\n\n[1]\n\nx\n"),  # moved, and without the empty line
        # a section that a user wrote
        (
            "# a\n\n## Results\n\n| F1 |\n\n## Training\n",
            "# a\n\n## Results\n\n| F1 |\n\n## Results\n\n[1]\n\n## Training\n",
        ),
        ("# a\n\n## Results\n\n| F1 |\n\n[0]\n", "# a\n\n## Results\n\n| F1 |\n\n[1]\n"),
        # what stands below is another's, under a heading of whatever level or none
        ("# a\n\n## Results\n\n[0]\n\n# b\n\nx\n", "# a\n\n## Results\n\n[1]\n\n# b\n\nx\n"),
        ("# a\n\n## Results\n\n[0]\n\nBy seed:\n", "# a\n\n## Results\n\n[1]\n\nBy seed:\n"),
    ],
)
def test_place_of_results(text, with_results):
    """`[0]` stands for results that are there, and `[1]` for those that are put in."""
    there, put_in = (f"{RESULTS_START}\n\n| {number} |\n\n{RESULTS_END}" for number in (0, 1))
    card = insert_results(text.replace("[0]", there), "| 1 |\n")
    assert card == with_results.replace("[1]", put_in)
    assert insert_results(card, "| 1 |\n") == card


def test_results_that_are_put_in_again_change_nothing():
    """TRL's card ends without a line break. The second time, results added one."""
    card = insert_results("# Model\n\n## Training\n\nVersions.", "| 1 |\n")
    assert insert_results(card, "| 1 |\n") == card


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("adapter_model.safetensors", None, "has no weights in safetensors files; save a model there"),
        ("README.md", None, r"has no model card \(README.md\): `trainer.save_model\(\)` writes one"),
        ("README.md", "---\na: [\n---\n", "README.md cannot be read as a model card"),
        ("README.md", "---\nmodel-index: 3\n---\n", "README.md cannot be read as a model card"),
        ("adapter_config.json", "{", "adapter_config.json is not JSON"),
        ("adapter_config.json", "[]", "must hold a JSON object"),
        ("adapter_config.json", "{}", "The base model is not named"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "model-1.safetensors"}}', "names model-1.safetensors"),
    ],
)
def test_folders_that_are_no_model(adapter_dir, name, content, message):
    if content is None:
        (adapter_dir / name).unlink()
    else:
        (adapter_dir / name).write_text(content)
    with pytest.raises(ConsistencyError, match=message) as error:
        prepare_page(adapter_dir, "me/bct")
    assert "\n" not in str(error.value)


def test_pickled_weights(adapter_dir):
    (adapter_dir / "adapter_model.safetensors").rename(adapter_dir / "adapter_model.bin")
    with pytest.raises(ConsistencyError, match=r"adapter_model.bin is a pickle, which is never sent: save the model"):
        prepare_page(adapter_dir, "me/bct")


def test_card_of_an_adapter_beside_merged_weights_is_warned_of(adapter_dir):
    """The card's example loads an adapter, and the Hub's page, too, says that it is one."""
    for name in ("adapter_model.safetensors", "adapter_config.json", "consistency_results.json"):
        (adapter_dir / name).unlink()
    make_model().save_pretrained(adapter_dir)
    with pytest.warns(UserWarning, match="the card is that of an adapter .*, and the folder holds a whole model"):
        read_card(adapter_dir)
