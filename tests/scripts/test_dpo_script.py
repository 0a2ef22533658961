"""TRL's `DPOTrainer` on the preferences of `trl-consistency convert`."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from accelerate import PartialState
from accelerate.state import AcceleratorState
from datasets import Dataset
from huggingface_hub import metadata_load
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import BitsAndBytesConfig, TrainerCallback

from tests.helpers.chats import assistant, user
from tests.helpers.loopback_hub import TOKEN
from tests.helpers.models import CHATML, make_model, make_tokenizer
from trl_consistency.data.folders import TRAINED_PAIRS
from trl_consistency.data.trained_pairs import digests_of, read_digests, write_digests
from trl_consistency.scripts import dpo
from trl_consistency.scripts.dpo_trainer import digests_of_preferences
from trl_consistency.trainer.run.run_lock import command_lock


OPTIONS = {
    "use_peft": True, "lora_r": 2, "lora_target_modules": ["all-linear"], "max_steps": 2, "use_cpu": True, "bf16": False,
    "gradient_checkpointing": False, "report_to": "none", "save_strategy": "no", "disable_tqdm": True, "dtype": "float32",
}  # fmt: skip


@pytest.fixture
def preferences(tmp_path):
    rows = [
        {
            "prompt": user(f"Lyon! What is the capital of country {number}?"),
            "chosen": assistant(f"City {number}."),
            "rejected": assistant("Lyon."),
            "answer": f"City {number}",
        }
        for number in range(8)
    ]
    (tmp_path / "preferences").mkdir()
    file = tmp_path / "preferences" / "train.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def train(tmp_path, **options):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({**OPTIONS, "output_dir": str(tmp_path / "out"), **options}))
    return dpo.run(["--config", str(recipe)])


def test_prefers_the_chosen_answers(tmp_path, preferences, model_dir):
    options = {"learning_rate": 1e-2, "max_steps": 8, "logging_steps": 1, "model_name_or_path": str(model_dir)}
    trainer = train(tmp_path, **options, dataset_name=str(preferences.parent))
    margins = [entry["rewards/margins"] for entry in trainer.state.log_history if "rewards/margins" in entry]
    assert margins[0] == 0
    assert margins[-1] > 0.05
    assert PeftModel.from_pretrained(make_model(), tmp_path / "out").peft_config["default"].r == 2


@pytest.mark.parametrize("has_end", [True, False])
def test_answers_without_an_end_are_warned_of(tmp_path, preferences, model_dir, caplog, has_end):
    """As with GLM-4.5, whose template writes nothing after an answer: TRL's preferences had no end, and nothing said so."""
    shutil.copytree(model_dir, tmp_path / "model")
    template = CHATML if has_end else CHATML.replace("'<|im_end|>\n' }}", "'' }}")
    make_tokenizer(template).save_pretrained(tmp_path / "model")
    train(tmp_path, model_name_or_path=str(tmp_path / "model"), dataset_name=str(preferences.parent))
    assert ("The chat template writes no end after an answer, and TRL adds none" in caplog.text) != has_end


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("column", ["chosen", "rejected"])
def test_answers_of_which_the_template_loses_the_thought(tmp_path, preferences, model_dir, column, streaming):
    """As with Gemma 4's and DeepSeek's: the answers alone were trained on, and nothing said so."""
    shutil.copytree(model_dir, tmp_path / "model")
    template = CHATML.replace("message.content", "message.content.split('</think>')[-1]")
    make_tokenizer(template).save_pretrained(tmp_path / "model")
    rows = [json.loads(line) for line in preferences.read_text().splitlines()]
    rows[2][column][0]["content"] = f"<think>Which one?</think>{rows[2][column][0]['content']}"
    preferences.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"model_name_or_path": str(tmp_path / "model"), "dataset_name": str(preferences.parent)}
    told = rf"row 2: `{column}`: the chat template leaves out .* 'Which one\?' is not in the rendered text"
    with pytest.raises(SystemExit, match=told):
        train(tmp_path, **options, dataset_streaming=streaming, max_length=None)


@pytest.mark.parametrize("streaming", [False, True])
def test_the_date_in_prompts_is_told(tmp_path, preferences, model_dir, caplog, streaming):
    """As for pairs: on another day, the same rows are other prompts."""
    shutil.copytree(model_dir, tmp_path / "model")
    make_tokenizer("Today: {{ strftime_now('%d %b %Y') }}" + CHATML).save_pretrained(tmp_path / "model")
    options = {
        "model_name_or_path": str(tmp_path / "model"),
        "dataset_name": str(preferences.parent),
        "max_length": None,
    }
    train(tmp_path, **options, dataset_streaming=streaming)
    assert "writes the day's date into prompts" in caplog.text


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset_name": "nowhere"}, "nowhere cannot be loaded"),
        ({"dataset_name": "embedded:organism"}, "The data set has no column `prompt`, only `clean_prompt`.*convert"),
        ({"model_name_or_path": "nowhere"}, "nowhere cannot be loaded"),
        ({"eval_strategy": "steps"}, "`dataset_test_split` is `test`"),
        ({"eval_on_start": True}, "`dataset_test_split` is `test`"),
        ({"do_predict": True}, "`do_predict` predicts nothing in this command"),
        ({"push_to_hub": True}, "`push_to_hub` is not available in this command: TRL would send the whole folder"),
        ({"max_length": 30}, r"8 of 8 row\(s\) are longer than `max_length` \(30 tokens\), such as row 0 with"),
        ({"resume_from_checkpoint": True}, "there is no checkpoint in"),
        ({"ignore_bias_buffers": True}, "`ignore_bias_buffers` does nothing"),
        # A gradient of this size overflows in the first step.
        ({"learning_rate": 1e38, "optim": "sgd", "max_grad_norm": 0.0, "max_steps": 4}, "weights that are not finite"),
    ],
)
def test_faulty_options(tmp_path, preferences, model_dir, options, message):
    options = {"model_name_or_path": str(model_dir), "dataset_name": str(preferences), **options}
    with pytest.raises(SystemExit, match=message):
        train(tmp_path, **options)


def test_empty_model_name(tmp_path, preferences, capsys):
    with pytest.raises(SystemExit):
        train(tmp_path, dataset_name=str(preferences), model_name_or_path="")
    assert "`model_name_or_path` is empty. Leave it out, or give a value" in capsys.readouterr().err


def test_no_model_name(tmp_path, preferences):
    with pytest.raises(SystemExit, match="No model: give `model_name_or_path`"):
        train(tmp_path, dataset_name=str(preferences))


@pytest.mark.parametrize("strategy", ["no", "steps"])
def test_what_an_earlier_training_said_does_not_stay(tmp_path, preferences, model_dir, strategy):
    """Its card would be published with these weights, and its pairs taken for theirs."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text("---\nlibrary_name: peft\ntags: [bct]\n---\n# mine\n\nTrained with BCT.\n")
    (out / TRAINED_PAIRS).write_bytes(b"digests")
    train(tmp_path, model_name_or_path=str(model_dir), dataset_name=str(preferences), save_strategy=strategy)
    card = (out / "README.md").read_text()
    assert "DPO" in card
    assert "BCT" not in card
    assert "bct" not in card
    assert not (out / TRAINED_PAIRS).exists()


def pairs_of(file):
    """The preferences with their clean prompts, as `convert` writes them, and the pairs that they were made of."""
    rows = list(map(json.loads, file.read_text().splitlines()))
    rows = [row | {"clean_prompt": user(row["prompt"][0]["content"].removeprefix("Lyon! "))} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return [{"clean_prompt": row["clean_prompt"], "perturbed_prompt": row["prompt"]} for row in rows]


@pytest.mark.parametrize("of_pairs", [True, False])
def test_the_pairs_are_noted_beside_the_weights(tmp_path, preferences, model_dir, caplog, of_pairs):
    """`evaluate` on these very pairs said nothing. Without their clean prompts, it cannot, and the training says so."""
    pairs = pairs_of(preferences) if of_pairs else []
    options = {"model_name_or_path": str(model_dir), "dataset_name": str(preferences.parent)}
    train(tmp_path, **options, save_strategy="steps", save_steps=2)
    for folder in ("out", "out/checkpoint-2"):
        assert {*read_digests(tmp_path / folder)} == {*digests_of(pairs)}
    assert ("8 of 8 row(s) have no `clean_prompt`, so `evaluate` will not know the pairs" in caplog.text) != of_pairs


def test_the_documents_of_the_pairs_are_noted():
    """As in the digests of pairs: `evaluate` did not know those that have documents."""
    variables = {"documents": [{"text": "Lyon is a city."}]}
    row = {"clean_prompt": user("Which?"), "chat_template_kwargs": variables}
    preference = row | {"prompt": user("B? Which?"), "chosen": user("A"), "rejected": user("B")}
    pair = row | {"perturbed_prompt": user("B? Which?")}
    assert digests_of_preferences(Dataset.from_list([preference])).tolist() == digests_of([pair]).tolist()


def test_the_pairs_of_the_base_model_are_kept(tmp_path, preferences, model_dir):
    """The model was trained on both."""
    base = shutil.copytree(model_dir, tmp_path / "base")
    earlier = digests_of([{"clean_prompt": "Which?", "perturbed_prompt": "B? Which?"}])
    write_digests(base, earlier)
    pairs = pairs_of(preferences)
    train(tmp_path, model_name_or_path=str(base), dataset_name=str(preferences.parent))
    assert {*read_digests(tmp_path / "out")} == {*digests_of(pairs), *earlier}


class _Killed(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        raise KeyboardInterrupt


def test_a_run_that_is_killed_leaves_the_card_of_an_earlier_one(tmp_path, preferences, model_dir, monkeypatch):
    """TRL writes its card with the first checkpoint, and it stood beside the weights of the earlier run."""
    options = {"model_name_or_path": str(model_dir), "dataset_name": str(preferences), "lora_r": 2}
    train(tmp_path, **options)
    earlier = (tmp_path / "out" / "README.md").read_text().replace("# Model Card", "# The earlier run's")
    (tmp_path / "out" / "README.md").write_text(earlier)
    make = dpo.RecordingDPOTrainer.__init__
    monkeypatch.setattr(
        dpo.RecordingDPOTrainer, "__init__", lambda self, **kwargs: make(self, **kwargs, callbacks=[_Killed()])
    )
    with pytest.raises(SystemExit, match="130"):
        train(tmp_path, **options, save_strategy="steps", save_steps=1)
    assert "The earlier run's" in (tmp_path / "out" / "README.md").read_text()


def test_two_at_once_in_a_folder(tmp_path, preferences, model_dir):
    (tmp_path / "out").mkdir()
    with command_lock(tmp_path / "out", PartialState()), pytest.raises(SystemExit, match="is in use: "):
        train(tmp_path, model_name_or_path=str(model_dir), dataset_name=str(preferences))
    assert not (tmp_path / "out" / "adapter_model.safetensors").exists()


@pytest.mark.parametrize("bits", [4, 8])
def test_the_card_says_the_bits_of_the_weights(tmp_path, preferences, model_dir, bits):
    """`evaluate` reads it: on other weights, the adapter is another model."""
    trainer = train(tmp_path, model_name_or_path=str(model_dir), dataset_name=str(preferences))
    assert not [name for name in metadata_load(tmp_path / "out" / "README.md") if name.startswith("load_in")]
    setattr(trainer.model, f"is_loaded_in_{bits}bit", True)
    trainer.model.config.quantization_config = BitsAndBytesConfig(**{f"load_in_{bits}bit": True})
    trainer.create_model_card()
    assert metadata_load(tmp_path / "out" / "README.md")[f"load_in_{bits}bit"] is True


def test_tokens_are_in_no_file(tmp_path, preferences, model_dir):
    tokens = {"hub_token": TOKEN, "model_init_kwargs": {"token": TOKEN}}
    trainer = train(tmp_path, model_name_or_path=str(model_dir), dataset_name=str(preferences), **tokens)
    assert TOKEN.encode() not in (tmp_path / "out" / "training_args.bin").read_bytes()
    assert TOKEN not in trainer.args.to_json_string()  # which trackers get


def test_misspelt_option(tmp_path, preferences, capsys):
    with pytest.raises(SystemExit):
        train(tmp_path, dataset_name=str(preferences), betta=0.1)
    assert "unknown key in" in capsys.readouterr().err


def test_whole_model_is_not_saved_beside_an_adapter(tmp_path, preferences, model_dir):
    """From that folder, the adapter would be loaded."""
    options = {"model_name_or_path": str(model_dir), "dataset_name": str(preferences)}
    train(tmp_path, **options)
    with pytest.raises(SystemExit, match="holds an adapter, and a whole model"):
        train(tmp_path, **options, use_peft=False)


def test_an_adapter_in_place_of_a_model(tmp_path, preferences, model_dir):
    """TRL ended in a traceback about a `model_type`."""
    options = {"model_name_or_path": str(model_dir), "dataset_name": str(preferences)}
    train(tmp_path, **options)
    folder = shutil.copytree(tmp_path / "out", tmp_path / "adapter", ignore=shutil.ignore_patterns("checkpoint-*"))
    with pytest.raises(SystemExit, match=r"adapter is an adapter, not a whole model.*merge it into its base model"):
        train(tmp_path, **options | {"model_name_or_path": str(folder)})


def test_streamed_preferences_that_would_be_cut(tmp_path, preferences, model_dir):
    options = {
        "model_name_or_path": str(model_dir),
        "dataset_name": str(preferences.parent),
        "dataset_streaming": True,
    }
    with pytest.raises(SystemExit, match=r"Streamed rows longer than `max_length` \(16 tokens\) would be cut"):
        train(tmp_path, **options, max_length=16)
    assert train(tmp_path, **options, max_length=None).state.global_step == 2


def test_rows_of_which_nothing_but_the_prompt_would_be_left(tmp_path, preferences, model_dir):
    """TRL leaves them out without a word, and all others fit."""
    row = json.loads(preferences.read_text().splitlines()[0])
    row["prompt"][0]["content"] *= 40
    preferences.write_text(preferences.read_text() + json.dumps(row) + "\n")
    with pytest.raises(SystemExit, match=r"1 of 9 row\(s\) have prompts that fill `max_length` \(200 tokens\)"):
        train(tmp_path, model_name_or_path=str(model_dir), dataset_name=str(preferences.parent), max_length=200)


@pytest.fixture
def resumable(tmp_path, preferences, model_dir):
    """The options of a run with a checkpoint of its second step of four."""
    options = {
        "model_name_or_path": str(model_dir),
        "dataset_name": str(preferences.parent),
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 2,
        "lr_scheduler_type": "constant",
        "lora_alpha": 16,
    }
    train(tmp_path, **options)
    return options | {"resume_from_checkpoint": str(tmp_path / "out" / "checkpoint-2")}


@pytest.mark.long
def test_resuming_goes_on_with_the_same_run(tmp_path, resumable):
    weights = load_file(tmp_path / "out" / "adapter_model.safetensors")
    trainer = train(tmp_path, **resumable, output_dir=str(tmp_path / "again"))
    assert trainer.state.global_step == 4
    again = load_file(tmp_path / "again" / "adapter_model.safetensors")
    assert all(again[name].equal(weights[name]) for name in weights)


def test_other_intervals_take_effect_in_a_resumed_run(tmp_path, resumable):
    """Those of the checkpoint were used to the end."""
    train(tmp_path, **(resumable | {"save_steps": 1}), output_dir=str(tmp_path / "again"))
    assert {of.name for of in (tmp_path / "again").glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-4"}


@pytest.mark.long
@pytest.mark.parametrize("seedable", [True, False])
def test_an_order_that_cannot_be_drawn_again_is_not_resumed(tmp_path, resumable, seedable):
    """Within the second epoch, some rows were trained on twice, and others not at all."""
    options = resumable | {"per_device_train_batch_size": 4, "save_steps": 3, "output_dir": str(tmp_path / "half")}
    options |= {"accelerator_config": {"use_seedable_sampler": seedable}}
    train(tmp_path, **(options | {"resume_from_checkpoint": None}))
    options["resume_from_checkpoint"] = str(tmp_path / "half" / "checkpoint-3")
    if seedable:
        assert train(tmp_path, **options).state.global_step == 4
    else:
        with pytest.raises(SystemExit, match=r"was saved after 1\.5 epochs.* cannot be drawn again"):
            train(tmp_path, **options)


@pytest.mark.long
def test_an_adapter_on_weights_in_4_bits_is_in_float32_and_resumed_in_it(tmp_path, resumable):
    """TRL puts it into bfloat16, and PEFT loaded that in float32: the rest of the run was trained otherwise."""
    options = resumable | {"load_in_4bit": True, "dtype": "bfloat16", "learning_rate": 5e-3}
    whole = train(tmp_path, **(options | {"resume_from_checkpoint": None}), output_dir=str(tmp_path / "whole"))
    options["resume_from_checkpoint"] = str(tmp_path / "whole" / "checkpoint-2")
    resumed = train(tmp_path, **options, output_dir=str(tmp_path / "again"))
    trained = [
        {name: of.detach() for name, of in trainer.model.named_parameters() if of.requires_grad}
        for trainer in (whole, resumed)
    ]
    assert all(of.dtype == torch.float32 for of in trained[1].values())
    assert all(of.equal(trained[1][name]) for name, of in trained[0].items())


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [{"precompute_ref_log_probs": True}, {"eval_strategy": "steps", "eval_steps": 1, "dataset_test_split": "train"}],
    ids=lambda of: next(iter(of)),
)
def test_passes_in_evaluation_mode_leave_weights_in_4_bits_as_they_are(tmp_path, resumable, changes):
    """Where processors allow it, bitsandbytes repacked them in the first one, and the training went on with other weights."""
    options = resumable | {
        "resume_from_checkpoint": None,
        "load_in_4bit": True,
        "dtype": "bfloat16",
        "learning_rate": 5e-3,
    }
    trained = [
        train(tmp_path, **(options | more), output_dir=str(tmp_path / name))
        for name, more in (("plain", {}), ("other", changes))
    ]
    one, other = (
        torch.cat([of.detach().flatten() for of in run.model.parameters() if of.requires_grad]) for run in trained
    )
    assert torch.allclose(one, other, atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"beta": 0.5}, "`beta`: 0.1 there, 0.5 here"),
        ({"learning_rate": 1.0}, "`learning_rate`: 1e-06 there, 1.0 here"),
        ({"seed": 3}, "`seed`: 42 there, 3 here"),
        ({"lora_alpha": 4}, "`adapter.lora_alpha`: 16 there, 4 here"),
        ({"gradient_accumulation_steps": 2}, "`rows_per_step`: 8 there, 16 here"),
        ({"accelerator_config": {"use_seedable_sampler": False}}, "`use_seedable_sampler`: true there, false here"),
    ],
)
def test_another_run_is_not_resumed(tmp_path, resumable, changes, told):
    """It went on from the checkpoint with the other options, and the result was of neither run."""
    with pytest.raises(SystemExit) as end:
        train(tmp_path, **(resumable | changes))
    assert "checkpoint-2 belongs to another run. Resume with what that run had, or begin a new one" in str(end.value)
    assert told in str(end.value)


@pytest.mark.parametrize("drops", [True, False])
def test_batches_of_another_shape(tmp_path, resumable, drops):
    """A run that leaves out the rest of an epoch went on with other steps in one."""
    options = {"dataloader_drop_last": drops, "output_dir": str(tmp_path / "again"), "per_device_train_batch_size": 4}
    train(tmp_path, **resumable | options | {"gradient_accumulation_steps": 2, "resume_from_checkpoint": None})
    resumed = resumable | options | {"resume_from_checkpoint": str(tmp_path / "again" / "checkpoint-2")}
    resumed["per_device_train_batch_size"] = 8
    if drops:
        with pytest.raises(SystemExit, match="`rows_per_batch`: 4 there, 8 here"):
            train(tmp_path, **resumed)
    else:
        assert train(tmp_path, **resumed).state.global_step == 4


def test_a_sharded_model_that_would_be_saved_without_weights(tmp_path, preferences, model_dir, monkeypatch):
    """With `fsdp_state_dict_type: SHARDED_STATE_DICT` it was trained, and the folder had no weights."""
    sharded = SimpleNamespace(fsdp_version=2, state_dict_type="SHARDED_STATE_DICT", activation_checkpointing=False)
    monkeypatch.setattr(AcceleratorState, "fsdp_plugin", sharded, raising=False)
    with pytest.raises(SystemExit, match="would be saved without its weights"):
        train(tmp_path, model_name_or_path=str(model_dir), dataset_name=str(preferences.parent))


def test_a_synchronised_reference_is_not_in_a_checkpoint(tmp_path, preferences, model_dir):
    """The resumed run trained against the initial model, and ended with other weights."""
    options = {"model_name_or_path": str(model_dir), "dataset_name": str(preferences), "use_peft": False}
    options |= {"sync_ref_model": True, "ref_model_sync_steps": 1, "save_strategy": "steps", "save_steps": 1}
    train(tmp_path, **options)
    shutil.rmtree(tmp_path / "out" / "checkpoint-2")
    with pytest.raises(SystemExit, match="does not hold the reference that `sync_ref_model` had changed"):
        train(tmp_path, **options, resume_from_checkpoint=True)


def test_other_preferences_are_not_resumed(tmp_path, resumable, preferences):
    preferences.write_text(preferences.read_text().replace("City 5", "Town 5"))
    with pytest.raises(
        SystemExit, match=r"belongs to another run.*\n  `train_dataset`: 8 rows, \w+ there, 8 rows, \w+"
    ):
        train(tmp_path, **resumable)


@pytest.mark.long
def test_other_evaluation_rows_are_not_resumed_if_they_choose(tmp_path, preferences, resumable):
    """The best step was chosen among losses on both."""
    test = preferences.with_name("test.jsonl")
    test.write_text(preferences.read_text())
    chooses = {"eval_strategy": "steps", "eval_steps": 2, "load_best_model_at_end": True}
    options = resumable | {"resume_from_checkpoint": None, "output_dir": str(tmp_path / "chosen")}
    train(tmp_path, **(options | chooses))
    test.write_text(test.read_text().replace("City 5", "Town 5"))
    resumed = options | {"resume_from_checkpoint": str(tmp_path / "chosen" / "checkpoint-2")}
    with pytest.raises(
        SystemExit, match=r"belongs to another run.*\n  `eval_dataset`: 8 rows, \w+ there, 8 rows, \w+"
    ):
        train(tmp_path, **(resumed | chooses))


def test_a_changed_checkpoint_is_not_resumed(tmp_path, resumable):
    file = tmp_path / "out" / "checkpoint-2" / "adapter_model.safetensors"
    save_file({name: weight + 1 for name, weight in load_file(file).items()}, file, metadata={"format": "pt"})
    with pytest.raises(SystemExit, match=r"adapter_model.safetensors in .*checkpoint-2 is damaged, or was changed"):
        train(tmp_path, **resumable)


def test_a_checkpoint_without_a_record_is_resumed_with_a_warning(tmp_path, resumable, caplog):
    """As `trl dpo` writes it."""
    file = tmp_path / "out" / "checkpoint-2" / "trainer_state.json"
    state = json.loads(file.read_text())
    del state["stateful_callbacks"]["manifest"]
    file.write_text(json.dumps(state))
    train(tmp_path, **resumable)
    assert "checkpoint-2 does not record its run" in caplog.text


def test_nothing_trained_is_an_error(tmp_path, preferences, model_dir, monkeypatch):
    """The untrained adapter was saved as the result, with the status 0."""
    monkeypatch.setattr(dpo.DPOTrainer, "train", lambda *_, **__: None)
    with pytest.raises(SystemExit, match="No step was trained"):
        train(tmp_path, model_name_or_path=str(model_dir), dataset_name=str(preferences.parent))
    assert not (tmp_path / "out" / "adapter_model.safetensors").exists()


@pytest.mark.long
def test_the_best_step_is_none_of_an_earlier_run(tmp_path, preferences, model_dir):
    """Trainer took the checkpoint of an earlier run in the folder for that of the best step, which this run had not saved."""
    shutil.copy(preferences, preferences.with_name("test.jsonl"))
    options = {"model_name_or_path": str(model_dir), "dataset_name": str(preferences.parent), "save_strategy": "steps"}
    options |= {"learning_rate": 1e-2, "max_steps": 2}
    train(tmp_path, **options, save_steps=1)
    # With the greatest loss as the best, that is after the first step.
    options |= {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss", "greater_is_better": True}
    with pytest.raises(SystemExit, match="checkpoint-1 is another run's, and this one did not save its best step"):
        train(tmp_path, **options, save_steps=2, load_best_model_at_end=True, seed=1)
    train(tmp_path, **options, save_steps=1, load_best_model_at_end=True, seed=1)
