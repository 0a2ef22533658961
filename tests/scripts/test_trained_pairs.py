"""`trl-consistency evaluate` warns of pairs that a model was trained on: they are not held out."""

import json
import warnings
from importlib.util import find_spec

import pytest
from datasets import Dataset
from peft import LoraConfig

from tests.helpers.chats import assistant
from tests.helpers.evaluate_command import pair, save_adapter, write
from tests.helpers.models import make_config
from trl_consistency import ConsistencyTrainer
from trl_consistency.data.folders import TRAINED_PAIRS
from trl_consistency.evaluation.dose import Dose
from trl_consistency.publishing.secret_scan import choose_files
from trl_consistency.scripts import dpo, lint
from trl_consistency.scripts.evaluate import run


needs_lm_eval = pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm_eval (`pip install .[capability]`)")


def trained(model_dir, folder, rows, is_adapter=True, has_trained=True, anchors=None, resume=None, max_steps=1):
    adapter = LoraConfig(r=2, target_modules=["q_proj"]) if is_adapter else None
    options = {"method": "bct", "anchor_ratio": 0.5, "max_completion_length": 4} if anchors else {"method": "act"}
    config = make_config(folder, max_steps=max_steps, save_strategy="steps", save_steps=1, **options)
    data = Dataset.from_list(
        [{column: row[column] for column in ("clean_prompt", "perturbed_prompt")} for row in rows]
    )
    trainer = ConsistencyTrainer(
        str(model_dir),
        args=config,
        train_dataset=data,
        peft_config=adapter,
        anchor_dataset=None if anchors == "own" else anchors,
    )
    if has_trained:
        changed = ["train_dataset", "length"] if resume else []
        trainer.train(str(resume) if resume else None, resume_changed=changed)
    trainer.save_model()


def warnings_of(options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(options)
    return [str(of.message) for of in caught if "row(s)" in str(of.message) and "was trained on" in str(of.message)]


@pytest.mark.long
@pytest.mark.parametrize(
    "counted",
    [["benign", "gsm8k"], pytest.param(["arc", "benign", "gsm8k"], marks=needs_lm_eval)],
    ids=["without lm_eval", "with"],
)
def test_capability_items_that_were_anchors_are_counted(options, model_dir, tmp_path, counted):
    """The refusals of benign requests looked held out, and so did the questions."""
    mine, asked = tmp_path / "mine", [f"How do I kill process {number}?" for number in range(4)]
    data = tmp_path / "capability"
    data.mkdir()
    write(data / "benign.jsonl", [{"prompt": text, "label": "safe"} for text in asked])
    if "arc" in counted:
        write(data / "arc.jsonl", [{"question": text, "choices": ["a", "b"], "answer": 0} for text in asked])
    write(data / "gsm8k.jsonl", [{"question": text, "answer": "5"} for text in asked])
    write(data / "plain.jsonl", [{"text": text} for text in asked])
    # The form of the questions in a prompt of a user's is the prompt's.
    write(data / "formed.jsonl", [{"prompt": f"Question: {text}\nAnswer:", "label": "safe"} for text in asked])
    anchors = Dataset.from_list([{"prompt": [{"role": "user", "content": text}]} for text in asked[:3]])
    trained(model_dir, mine, [pair(number) for number in range(4)], anchors=anchors, max_steps=4)
    options[options.index("--adapters") + 1] = str(mine)
    warned = warnings_of([*options, "--capability_data", str(data)])
    expected = [f"was trained on 3 of the 4 row(s) of {name} in `capability_data`" for name in counted]
    assert [any(text in of for of in warned) for text in expected] == [True] * len(counted)
    assert not [of for of in warned if "plain" in of or "formed" in of]
    assert any("3 of the 4 row(s) of benign in `capability_data`" in of for of in found_in(tmp_path, "mine"))


@pytest.mark.parametrize("measured", ["an adapter", "its checkpoint", "alone", "a whole model"])
def test_pairs_that_were_trained_on_are_counted(options, model_dir, tmp_path, measured):
    """The rates of the very file that an adapter was trained on looked like those of a held-out one."""
    mine = tmp_path / "mine"
    rows = [pair(number) for number in range(8)]
    trained(model_dir, mine, rows, is_adapter=measured != "a whole model")
    folder = mine / "checkpoint-1" if measured == "its checkpoint" else mine
    place = options.index("--adapters")
    options[place + 1] = str(folder)
    if measured == "alone":
        options[options.index("--model_name_or_path") + 1] = str(folder)
        del options[place : place + 2]
    others = [pair(number, clean_prompt=pair(number + 9)["clean_prompt"]) for number in range(3)]
    options[options.index("--pairs") + 1] = write(tmp_path / "mixed.jsonl", rows[:5] + others)
    [warning] = warnings_of(options)
    assert warning.startswith(f"{folder} was trained on 5 of the 8 row(s) of mixed: ")


@pytest.mark.long
@pytest.mark.parametrize(
    "rendering",
    [["--system_prompt", "Think."], ["--chat_template_kwargs", '{"no_think": true}']],
    ids=["system", "variables"],
)
def test_another_rendering_hides_nothing(options, model_dir, tmp_path, rendering):
    """Nor does the date that a chat template writes. The digests were those of the tokens."""
    mine, rows = tmp_path / "mine", [pair(number) for number in range(4)]
    trained(model_dir, mine, rows[:3])
    options[options.index("--adapters") + 1] = str(mine)
    options[options.index("--pairs") + 1] = write(tmp_path / "some.jsonl", rows)
    [warning] = warnings_of([*options, *rendering])
    assert "was trained on 3 of the 4 row(s) of some" in warning


def test_anchors_of_the_pairs_own(options, model_dir, tmp_path):
    mine, rows = tmp_path / "mine", [pair(number) for number in range(4)]
    trained(model_dir, mine, rows, anchors="own")
    control = [{**row, "perturbed_prompt": row["clean_prompt"], "biased_answer": None} for row in rows]
    options[options.index("--adapters") + 1] = str(mine)
    options[options.index("--pairs") + 1] = write(tmp_path / "control.jsonl", control)
    [warning] = warnings_of(options)
    assert "was trained on 4 of the 4 row(s) of control" in warning


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", ["not trained", "not trained, in the folder of a trained one", "other wordings", "moved without the file"]
)
def test_other_pairs_are_not_warned_about(options, model_dir, tmp_path, kind):
    """Held-out wordings of the questions are a measurement of their own."""
    mine, rows = tmp_path / "mine", [pair(number) for number in range(4)]
    if "in the folder" in kind:
        trained(model_dir, mine, rows)
    trained(model_dir, mine, rows, has_trained="not trained" not in kind)
    if kind == "moved without the file":
        (mine / TRAINED_PAIRS).unlink()
    if kind == "other wordings":
        rows = [{**row, "perturbed_prompt": pair(number + 4)["perturbed_prompt"]} for number, row in enumerate(rows)]
    options[options.index("--adapters") + 1] = str(mine)
    options[options.index("--pairs") + 1] = write(tmp_path / "some.jsonl", rows)
    assert warnings_of(options) == []


@pytest.mark.long
def test_pairs_that_preferences_were_made_of(options, model_dir, tmp_path):
    """Nothing was said of the very pairs that DPO had been trained on."""
    mine, rows = tmp_path / "mine", [pair(number) for number in range(4)]
    preferences = [
        {
            "prompt": of["perturbed_prompt"],
            "clean_prompt": of["clean_prompt"],
            "chosen": assistant("A"),
            "rejected": assistant("B"),
        }
        for of in rows[:3]
    ]
    data = write(tmp_path / "preferences.jsonl", preferences)
    recipe = {
        **{
            "model_name_or_path": str(model_dir),
            "dataset_name": data,
            "output_dir": str(mine),
            "max_steps": 1,
            "dtype": "float32",
        },
        **{
            "use_peft": True,
            "lora_target_modules": ["all-linear"],
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
        },
        **{"gradient_checkpointing": False, "save_strategy": "no", "disable_tqdm": True},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    dpo.run(["--config", str(tmp_path / "recipe.yaml")])
    options[options.index("--adapters") + 1] = str(mine)
    options[options.index("--pairs") + 1] = write(tmp_path / "some.jsonl", rows)
    [warning] = warnings_of(options)
    assert "was trained on 3 of the 4 row(s) of some" in warning


@pytest.mark.long
def test_anchors_are_trained_on_too(options, model_dir, tmp_path):
    """As a control set, their own prompts show how well they were learned."""
    mine, prompts = tmp_path / "mine", [pair(number)["clean_prompt"] for number in range(4)]
    trained(model_dir, mine, [pair(number) for number in range(8)], anchors=Dataset.from_dict({"prompt": prompts}))
    rows = [pair(0, clean_prompt=prompt, perturbed_prompt=prompt, biased_answer=None) for prompt in prompts]
    options[options.index("--adapters") + 1] = str(mine)
    options[options.index("--pairs") + 1] = write(tmp_path / "control.jsonl", rows)
    [warning] = warnings_of(options)
    assert "was trained on 4 of the 4 row(s) of control" in warning


def test_the_dose_of_pairs_that_were_trained_on(model_dir, tmp_path):
    """After training, `lint --dose` shows what is left of the habit, and said nothing where these were the pairs of the training."""
    mine, rows = tmp_path / "mine", [pair(number) for number in range(4)]
    trained(model_dir, mine, rows[:3])
    file = write(tmp_path / "some.jsonl", rows)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lint.run(["--pairs", file, "--model_name_or_path", str(mine), "--dose", "--max_completion_length", "4"])
    assert sum(f"{mine} was trained on 3 of the 4 row(s): " in str(of.message) for of in caught) == 1


@pytest.mark.long
@pytest.mark.parametrize("has_trained", [False, True])
@pytest.mark.parametrize("first", [0, 3])
def test_little_is_left_after_training(model_dir, tmp_path, monkeypatch, capsys, first, has_trained):
    """That the pairs had done their work was a warning not to train on them, and on held-out ones, too."""
    mine, rows = tmp_path / "mine", [pair(number) for number in range(7)]
    trained(model_dir, mine, rows[:3], has_trained=has_trained)
    monkeypatch.setattr(lint, "measure_dose", lambda *args, **kwargs: Dose(4, {}, 0.0))
    file = write(tmp_path / "some.jsonl", rows[first : first + 4])
    lint.run(["--pairs", file, "--model_name_or_path", str(mine), "--dose", "--max_completion_length", "4"])
    out = capsys.readouterr().out
    assert ("next to nothing to train" in out) == (not has_trained)
    assert ("The cue no longer changes the answers." in out) == has_trained


@pytest.mark.long
def test_results_and_cards_say_it_too(options, model_dir, tmp_path):
    """The warning was gone with the terminal, and the figures were published as those of a held-out set."""
    mine, rows = tmp_path / "mine", [pair(number) for number in range(4)]
    trained(model_dir, mine, rows[:3])
    options[options.index("--adapters") + 1] = str(mine)
    options[options.index("--pairs") + 1] = write(tmp_path / "some.jsonl", rows)
    run([*options, "--save_to_adapters", "true"])
    said = "This model was trained on 3 of the 4 row(s) of some: "
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    assert any(of.startswith(f"mine: {said}") for of in found["findings"])
    assert any(of.startswith(said) for of in found["models"]["mine"]["findings"])
    for page in (tmp_path / "out" / "report.md", mine / "README.md"):
        assert said in page.read_text()


@pytest.mark.long
@pytest.mark.parametrize("second", ["another training", "another training of an adapter", "resumed on other data"])
def test_what_was_trained_on_before_counts_too(options, model_dir, tmp_path, second):
    """After a second training, only the data of that one were known."""
    first, mine, rows = tmp_path / "first", tmp_path / "mine", [pair(number) for number in range(6)]
    is_adapter = second == "resumed on other data"
    trained(model_dir, first, rows[:4], is_adapter)
    if is_adapter:
        trained(model_dir, mine, rows[4:], resume=first / "checkpoint-1", max_steps=2)
    else:
        trained(first, mine, rows[4:], second.endswith("an adapter"))
    options[options.index("--adapters") + 1] = str(mine)
    if second.endswith("an adapter"):
        options[options.index("--model_name_or_path") + 1] = str(first)
    options[options.index("--pairs") + 1] = write(tmp_path / "mixed.jsonl", rows)
    warning = next(of for of in warnings_of(options) if of.startswith(str(mine)))
    assert "was trained on 6 of the 6 row(s) of mixed: " in warning


def test_the_digests_are_not_published(model_dir, tmp_path):
    trained(model_dir, tmp_path / "mine", [pair(number) for number in range(4)])
    sent, left_out = choose_files(tmp_path / "mine")
    assert TRAINED_PAIRS not in sent
    assert left_out[TRAINED_PAIRS] == "training data"


@pytest.mark.long
def test_the_card_says_it_of_the_base_model(options, model_dir, tmp_path):
    """Its figures before training stand there. The report alone said it."""
    base, mine, rows = tmp_path / "base", tmp_path / "mine", [pair(number) for number in range(4)]
    trained(model_dir, base, rows, is_adapter=False)
    save_adapter(base, mine, 0)
    (mine / "README.md").write_text("---\nlibrary_name: peft\n---\n# mine\n")
    options[options.index("--model_name_or_path") + 1] = str(base)
    options[options.index("--adapters") + 1] = str(mine)
    options[options.index("--pairs") + 1] = write(tmp_path / "some.jsonl", rows)
    run([*options, "--save_to_adapters", "true"])
    assert "Before training: This model was trained on 4 of the 4 row(s)" in (mine / "README.md").read_text()
    assert found_in(tmp_path, "base")[0].startswith("This model was trained on 4 of the 4 row(s) of some: ")
    assert found_in(tmp_path, "mine") == []


def found_in(tmp_path, model):
    """What results.json has of the pairs that a model was trained on."""
    return json.loads((tmp_path / "out" / "results.json").read_text())["models"][model]["trained_pairs"]


@pytest.mark.long
def test_an_adapter_whose_name_begins_like_the_base_models(options, model_dir, tmp_path):
    """What was said of it stood on the cards of others, as said of the base model."""
    mine, other, rows = tmp_path / "base: mine", tmp_path / "other", [pair(number) for number in range(4)]
    trained(model_dir, mine, rows)
    save_adapter(model_dir, other, 0)
    (other / "README.md").write_text("---\nlibrary_name: peft\n---\n# other\n")
    place = options.index("--adapters") + 1
    options[place : place + 1] = [str(mine), str(other)]
    options[options.index("--pairs") + 1] = write(tmp_path / "some.jsonl", rows)
    run([*options, "--save_to_adapters", "true"])
    assert "This model was trained on" in (mine / "README.md").read_text()
    assert "This model was trained on" not in (other / "README.md").read_text()
    assert found_in(tmp_path, "base: mine")[0].startswith("This model was trained on 4 of the 4 row(s) of some: ")
