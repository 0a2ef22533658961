"""Checkpoints of architectures that transformers saves under other names than those in memory: experts one by one, other heads."""

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from tests.helpers import paired
from tests.helpers.architectures import CONFIGS, HYBRIDS, SMALLER, make
from tests.helpers.models import make_pairs
from tests.helpers.runs import weights
from tests.trainer.test_architectures import make_for_texts
from trl_consistency import ConsistencyError
from trl_consistency.models.checkpoint_weights import loading_every_weight


RENAMED = ("gpt_neox", "qwen3_moe")
ALL = [*CONFIGS, *HYBRIDS]


def make_trainer(kind, folder, **options):
    torch.manual_seed(0)
    options = {"per_device_train_batch_size": 4, "max_steps": 3, "save_strategy": "steps", "save_steps": 1, **options}
    return paired.make_trainer(folder, make_pairs(), model=make_for_texts(kind), method="bct", **options)


@pytest.mark.parametrize("kind", RENAMED)
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, kind):
    """All experts, or the head, were those from before the training, and only transformers' log said so."""
    whole = make_trainer(kind, tmp_path)
    whole.train()
    resumed = make_trainer(kind, tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert torch.equal(weights(whole.model), weights(resumed.model))


@pytest.mark.parametrize("kind", RENAMED)
def test_the_best_checkpoint_is_the_model_that_is_kept(tmp_path, kind):
    """The experts, or the head, were those of the last step, and all else was of the best one."""
    evaluation = {"eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True}
    worst = {"metric_for_best_model": "eval_loss", "greater_is_better": True}  # which is the first step
    with pytest.warns(match="worst step would be kept"):
        trainer = make_trainer(kind, tmp_path, eval_dataset=make_pairs(), **evaluation, **worst)
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert max(losses) == losses[0] > losses[-1]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(losses[0], abs=1e-6)
    saved = type(trainer.model).from_pretrained(tmp_path / "checkpoint-1")
    assert torch.equal(weights(trainer.model), weights(saved))


class Loading:
    """What of a trainer loads a checkpoint."""

    def __init__(self, model):
        self.model = model

    def _issue_warnings_after_load(self, result):
        pass


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=() if kind in ("llama", "gpt_oss") else pytest.mark.long) for kind in ALL]
)
@pytest.mark.parametrize("tied", [False, True])
def test_every_weight_is_loaded(tmp_path, kind, tied):
    model = make(kind, **({} if kind in SMALLER else {"tie_word_embeddings": tied}))
    model.save_pretrained(tmp_path)
    expected = {name: weight.clone() for name, weight in model.state_dict().items()}
    identity = {name: id(weight) for name, weight in model.named_parameters()}
    with torch.no_grad():
        for weight in model.parameters():
            weight.zero_()
    with loading_every_weight(trainer := Loading(model), str(tmp_path)):
        trainer._issue_warnings_after_load(load_as_transformers_does(model, tmp_path))
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, expected[name]), name
    assert {name: id(weight) for name, weight in model.named_parameters()} == identity, "the optimizer holds them"


def load_as_transformers_does(model, folder):
    return model.load_state_dict(load_file(folder / "model.safetensors"), strict=False)


def test_weights_that_the_checkpoint_lacks(tmp_path):
    model = make("llama")
    model.save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    del stored["model.norm.weight"]
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with (
        loading_every_weight(trainer := Loading(model), str(tmp_path)),
        pytest.raises(ConsistencyError, match=r"lacks the weights model\.norm\.weight\. Take another"),
    ):
        trainer._issue_warnings_after_load(load_as_transformers_does(model, tmp_path))


class OwnModel(LlamaForCausalLM):
    """A class of one's own, which takes other arguments."""

    def __init__(self, config, name):
        super().__init__(config)


def test_a_class_that_cannot_load_the_checkpoint(tmp_path):
    make("gpt_neox").save_pretrained(tmp_path)
    model = OwnModel(CONFIGS["llama"](), "mine")
    with (
        loading_every_weight(trainer := Loading(model), str(tmp_path)),
        pytest.raises(ConsistencyError, match=r"`OwnModel\.from_pretrained` cannot load it: .* Use a class whose"),
    ):
        trainer._issue_warnings_after_load(load_as_transformers_does(model, tmp_path))
