"""A server that gets the adapter alone, on a stand-in for `vllm serve --enable-lora`; TRL's client is the real one."""

import os

import pytest
import torch
from peft import LoraConfig
from transformers import AutoModelForCausalLM

from tests.helpers.on_policy import moved, uneven_pairs
from tests.helpers.vllm_stand_in import served  # noqa: F401
from tests.rollouts.test_adapter_sync import lora, make_trainer
from tests.rollouts.test_vllm_engine import adapted, make_nf4, merged, mismatches
from trl_consistency import ConsistencyError


def options(server, **others):
    return {"vllm_mode": "server", "vllm_server_base_url": server.url, "vllm_server_timeout": 5.0, **others}


@pytest.mark.long
@pytest.mark.parametrize("loss_type", ["divergence", "policy_gradient"])
def test_the_server_answers_as_the_policy_at_every_step(served, tmp_path, model_dir, loss_type):  # noqa: F811
    trainer = make_trainer(
        tmp_path, str(model_dir), lora(), max_steps=3, learning_rate=2e-2, loss_type=loss_type, **options(served)
    )  # fmt: skip
    trainer.train()
    assert max(mismatches(trainer)) < 1e-4
    assert trainer.rollout_engine._origin.passed
    ((name, model),) = served.adapters.items()
    assert len(served.folders) == 4
    assert not any(folder.exists() for folder in served.folders[:-1])
    moved(trainer.model)
    trainer.rollout_engine._adapter_sync.send()
    assert name not in served.adapters
    (model,) = served.adapters.values()
    expected = dict(merged(trainer.model))
    assert all(weight.allclose(expected[of], rtol=1e-4, atol=1e-5) for of, weight in model.named_parameters())
    assert not served.held.received
    assert not any("weight" in path for path, _ in served.requests)


def test_evaluations_between_which_the_weights_change(served, tmp_path, model_dir):  # noqa: F811
    """Without a step in between, as when another adapter is loaded."""
    trainer = make_trainer(tmp_path, str(model_dir), lora(), uneven_pairs(4), **options(served))
    for _ in range(2):
        trainer.evaluate()
        with torch.no_grad():
            for name, matrix in trainer.model.named_parameters():
                if "lora_B" in name:
                    matrix.add_(0.5 * torch.randn_like(matrix))
    name = "eval_sampling/sampling_logp_difference/mean"
    assert max(log[name] for log in trainer.state.log_history) < 1e-4


def test_a_server_that_forgets_the_adapter_gets_it_again(served, tmp_path, model_dir):  # noqa: F811
    """As one that was started again between two steps."""
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=2, **options(served))
    complete, lost = served.complete, []

    def forgetting(**body):
        if not lost:
            lost.append(dict(served.adapters))
            served.adapters.clear()
        return complete(**body)

    served.complete = forgetting
    trainer.train()
    assert lost[0]
    assert max(mismatches(trainer)) < 1e-4
    served.loads_adapters = False
    served.adapters.clear()
    with pytest.raises(ConsistencyError, match="does not load adapters while it runs"):
        trainer.rollout_engine([[5, 6]], 2, 8)


@pytest.mark.parametrize("whole", [False, True])
def test_a_server_samples_without_defaults_of_the_model(whole, served, tmp_path, model_dir):  # noqa: F811
    """It takes what a request does not say from the model's generation_config.json."""
    served.defaults = {
        **{"repetition_penalty": 50.0, "presence_penalty": 1.0, "frequency_penalty": 1.0},
        **{"temperature": 0.1, "top_k": 1, "top_p": 0.1, "min_p": 0.9},
    }
    own = {"generation_kwargs": {"frequency_penalty": 0.5}, "vllm_check_every": 0}
    trainer = make_trainer(
        tmp_path, str(model_dir), None if whole else lora(), max_steps=1, **own, **options(served)
    )  # fmt: skip
    trainer.train()
    trainer.rollout_engine.greedy([[5, 6]], 4)
    rollouts, greedy = (body for path, body in served.requests if path == "/v1/completions")
    for body, penalty in ((rollouts, 0.5), (greedy, 0.0)):
        assert served.defaults.keys() <= body.keys()
        assert (body["presence_penalty"], body["frequency_penalty"]) == (0.0, penalty)


def test_a_server_is_not_asked_for_what_is_not_used(served, tmp_path, model_dir):  # noqa: F811
    own = {"repetition_penalty": 1.1, "vllm_importance_sampling_correction": False}
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=1, **own, **options(served))
    trainer.train()
    assert trainer.state.global_step == 1
    assert all(body["logprobs"] is None for path, body in served.requests if path == "/v1/completions")


def test_weights_of_tokens_whose_probabilities_nothing_checks(served, tmp_path, model_dir):  # noqa: F811
    """A server may tell the probabilities before the temperature. A server of adapters does not say so, and only the check shows it."""
    own = {"loss_type": "policy_gradient", "vllm_check_every": 0, "temperature": 0.8, "loss_temperature": 0.8}
    said = r"`vllm_check_every: 0` is not available with `policy_gradient` at the temperature 0\.8"
    with pytest.raises(ConsistencyError, match=said):
        make_trainer(tmp_path, str(model_dir), lora(), **own, **options(served))
    with pytest.raises(ConsistencyError, match=said):
        make_trainer(tmp_path, adapted(AutoModelForCausalLM.from_pretrained(model_dir)), **own, **options(served))
    assert not served.requests
    for other in (
        {"vllm_check_every": 10},
        {"vllm_importance_sampling_correction": False},
        {"temperature": 1.0, "loss_temperature": 1.0},
        {"loss_type": "divergence"},
    ):
        assert make_trainer(tmp_path, str(model_dir), lora(), **{**own, **other}, **options(served))


def test_options_that_vllm_does_not_have(served, tmp_path, model_dir):  # noqa: F811
    """A server would only leave them out."""
    with pytest.raises(ConsistencyError, match=r"unknown key `frequncy_penalty`\. Did you mean `frequency_penalty`"):
        make_trainer(
            tmp_path, str(model_dir), lora(), generation_kwargs={"frequncy_penalty": 0.5}, **options(served)
        )  # fmt: skip
    assert not served.requests


def test_a_server_that_fails_for_good(served, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=2, **options(served))

    def fail(**body):
        raise MemoryError("no room")

    served.complete = fail
    with pytest.raises(ConsistencyError, match=r"did not answer: .*no room.*resume"):
        trainer.train()


def test_what_servers_must_be_able_to(served, tmp_path, model_dir):  # noqa: F811
    served.loads_adapters = False
    with pytest.raises(
        ConsistencyError,
        match=r"Start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve held .*--max-lora-rank 8 ",
    ):
        make_trainer(tmp_path, str(model_dir), lora(), **options(served))
    served.loads_adapters = True

    def refuse(*args):
        raise ValueError("LoRA rank 4 is greater than max_lora_rank 2.")

    served.respond, respond = lambda path, body: refuse() if "lora" in path else respond(path, body), served.respond
    with pytest.raises(ConsistencyError, match=r"did not take the adapter.*greater than max_lora_rank 2"):
        make_trainer(tmp_path, str(model_dir), lora(), **options(served))
    served.respond = respond
    with pytest.raises(ConsistencyError, match="cannot get only the adapter of a quantized model"):
        make_trainer(tmp_path, make_nf4(model_dir), lora(), **options(served))
    with pytest.raises(ConsistencyError, match="`vllm_sync: weights`"):
        make_trainer(tmp_path, str(model_dir), LoraConfig(r=4, use_dora=True), **options(served))


def test_folder_that_both_can_read(served, tmp_path, model_dir):  # noqa: F811
    far = {"vllm_mode": "server", "vllm_server_host": "gpu-7"}
    with pytest.raises(ConsistencyError, match=r"another machine \(gpu-7\).*Set `vllm_adapter_dir`"):
        make_trainer(tmp_path, str(model_dir), lora(), **far)
    with pytest.raises(ConsistencyError, match="is not a folder that can be written to"):
        make_trainer(tmp_path, str(model_dir), lora(), vllm_adapter_dir=str(tmp_path / "missing"), **far)
    with pytest.raises(ConsistencyError, match="is set, but no server gets the adapter"):
        make_trainer(tmp_path, str(model_dir), lora(), vllm_adapter_dir=str(tmp_path))
    (tmp_path / "shared").mkdir()
    trainer = make_trainer(
        tmp_path / "out", str(model_dir), lora(), **options(served, vllm_adapter_dir=str(tmp_path / "shared"))
    )  # fmt: skip
    (folder,) = served.folders
    assert folder.parent == tmp_path / "shared"
    assert os.stat(folder).st_mode & 0o777 == 0o755
    assert {os.stat(file).st_mode & 0o777 for file in folder.iterdir()} == {0o644}
    trainer.rollout_engine._adapter_sync.send()
    assert not folder.exists()
