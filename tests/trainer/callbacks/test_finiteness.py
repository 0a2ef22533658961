"""A run whose numbers are no longer finite stops, says where and why, and keeps what was finite."""

import math
import shutil

import pytest
import torch
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from transformers import GenerationConfig, TrainerCallback

from tests.helpers.by_method import trainer_of
from tests.helpers.models import make_model, make_pairs, make_tokenizer
from trl_consistency import ConsistencyError
from trl_consistency.finite import NotFiniteError, check_files, is_finite
from trl_consistency.generation.targets import generate_targets
from trl_consistency.models.loading import load_model
from trl_consistency.trainer.run import interruption


def make_trainer(directory, method="bct", lora=True, model=None, completion=True, **options):
    options = {
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_steps": 1,
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        **options,
    }
    return trainer_of(
        method,
        directory,
        model or make_model(),
        options,
        train_dataset=make_pairs(12, completion=completion),
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=4, target_modules="all-linear") if lora else None,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("method", "lora"), [("bct", True), ("bct", False), ("act", True), ("act", False), ("kl", True), ("opct", True)]
)
def test_run_that_diverges(tmp_path, method, lora):
    trainer = make_trainer(tmp_path, method, lora, learning_rate=1e30, max_grad_norm=0.0)
    with pytest.raises(
        NotFiniteError, match=r"Training stopped in step 2\. .* not finite.*checkpoint-1, is kept"
    ) as end:
        trainer.train()
    assert "\n" not in str(end.value)
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-1"]
    check_files(tmp_path / "checkpoint-1")
    assert not list(tmp_path.glob("*.safetensors"))
    card = (tmp_path / "README.md").read_text()
    assert "| Stopped | In step 2. The weights are those before it. The " in card
    assert str(tmp_path) not in card


def spoil(trainer, steps, value=math.nan, of_gradient=False):
    """Has the loss (or the gradient alone) of those steps be `value`."""
    compute_loss = trainer.compute_loss

    def spoiled(*args, **kwargs):
        loss = compute_loss(*args, **kwargs)
        if trainer.state.global_step + 1 not in steps:
            return loss
        if of_gradient:
            loss.register_hook(lambda gradient: gradient * value)
            return loss
        return loss * value

    trainer.compute_loss = spoiled


@pytest.mark.parametrize("of_gradient", [False, True])
def test_one_bad_batch_is_enough(tmp_path, of_gradient):
    trainer = make_trainer(tmp_path, gradient_accumulation_steps=2, save_strategy="no", max_grad_norm=0.0)
    spoil(trainer, [3], of_gradient=of_gradient)
    what = "The norm of the gradient" if of_gradient else "The loss"
    with pytest.raises(NotFiniteError, match=rf"in step 3\. {what} is not finite.*No checkpoint was saved before it"):
        trainer.train()
    assert trainer.finiteness.weights_are_finite()
    assert 0.0 not in [entry.get("loss") for entry in trainer.state.log_history]


def test_weights_that_an_optimizer_spoils(tmp_path):
    class Spoil(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
            if state.global_step == 1:
                next(weight for weight in model.parameters() if weight.requires_grad).data[0] = math.inf

    trainer = make_trainer(tmp_path)
    trainer.add_callback(Spoil())
    with pytest.raises(NotFiniteError, match=r"in step 2\. The optimizer made weights that are not finite"):
        trainer.train()
    with pytest.raises(NotFiniteError, match="are not saved"):
        trainer.save_model()
    assert not list(tmp_path.glob("*.safetensors"))


@pytest.fixture
def scaled(monkeypatch):
    """Has a trainer use a grad scaler as in fp16."""

    def change(trainer):
        monkeypatch.setattr(trainer.accelerator.state, "_mixed_precision", "fp16")
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        return trainer

    return change


def test_batch_that_the_grad_scaler_skips(tmp_path, scaled, caplog):
    trainer = scaled(make_trainer(tmp_path, save_strategy="no"))
    spoil(trainer, [3], math.inf)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [step for step, loss in enumerate(losses, start=1) if math.isnan(loss)] == [3]
    assert "The loss of step 3 overflowed in fp16, and the grad scaler skips the step" in caplog.text
    assert trainer.finiteness.updates == 5


def test_loss_that_the_grad_scaler_cannot_mend(tmp_path, scaled):
    trainer = scaled(make_trainer(tmp_path))
    spoil(trainer, [3, 4])
    with pytest.raises(NotFiniteError, match=r"in step 4\. The loss is not finite in two steps in a row"):
        trainer.train()


def test_gradient_that_the_grad_scaler_cannot_mend(tmp_path, scaled):
    trainer = scaled(make_trainer(tmp_path))
    spoil(trainer, range(1, 7), math.inf, of_gradient=True)
    with pytest.raises(
        NotFiniteError, match=r"in step 4\. The norm of the gradient .* grad scaler has come down to 0\.5"
    ):
        trainer.train()


def test_run_whose_every_step_is_skipped(tmp_path, scaled):
    trainer = scaled(make_trainer(tmp_path, max_steps=2))
    spoil(trainer, [1, 2], math.inf, of_gradient=True)
    with pytest.raises(NotFiniteError, match="no step changed a weight"):
        trainer.train()


@pytest.mark.parametrize("method", ["bct", "act", "opct"])
def test_base_with_one_value_that_is_not_finite(tmp_path, method):
    model = make_model()
    model.model.layers[1].mlp.up_proj.weight.data[3, 5] = math.nan
    with pytest.raises(NotFiniteError, match=r"layers\.1\.mlp\.up_proj.*weight hold NaN"):
        make_trainer(tmp_path, method, model=model, completion=False)


def test_checkpoint_that_is_not_finite(tmp_path, monkeypatch):
    monkeypatch.setattr(interruption, "_checksum", lambda file: "any")  # so that the file may change
    make_trainer(tmp_path, max_steps=1).train()
    file = tmp_path / "checkpoint-1" / "adapter_model.safetensors"
    save_file({name: weight * math.nan for name, weight in load_file(file).items()}, file, {"format": "pt"})
    with pytest.raises(ConsistencyError, match="The weights of step 1, from which training resumes, are not finite"):
        make_trainer(tmp_path).train(resume_from_checkpoint=True, resume_changed=["length"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn])
def test_is_finite(dtype):
    tensor = torch.ones(3, 4).to(dtype)
    assert is_finite(tensor)
    assert is_finite(torch.empty(0, dtype=dtype))
    for value in (math.nan, *([] if dtype == torch.float8_e4m3fn else [math.inf, -math.inf])):
        spoiled = tensor.clone()
        spoiled[2, 1] = value
        assert not is_finite(spoiled)
    assert is_finite(torch.ones(3, dtype=torch.uint8))


def test_measuring_refuses_weights_that_are_not_finite(tmp_path, model_dir):
    shutil.copytree(model_dir, tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][0] = math.inf
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(
        NotFiniteError, match=r"model/model\.safetensors: the weights model\.norm\.weight hold NaN or infin"
    ):
        load_model(str(tmp_path / "model"))


def test_probabilities_that_cannot_be_sampled_from():
    """Weights may be finite and what they make of a prompt not."""
    model, config = make_model(), GenerationConfig(do_sample=True, max_new_tokens=2, pad_token_id=0, eos_token_id=2)
    model.lm_head.weight.data[:] = 1e38
    with pytest.raises(NotFiniteError, match="The probabilities of the model are not finite"):
        generate_targets(model, [[5, 6]], config, 1, 0, progress=False)
