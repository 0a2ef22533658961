"""`vllm_overlap`, on a stand-in for `vllm serve --enable-lora`; `test_with_vllm.py` has vLLM itself."""

import threading

import pytest
from transformers import TrainerCallback

from tests.helpers.held_out import CONTROL, PAIRS
from tests.helpers.models import make_tokenizer
from tests.helpers.on_policy import make_on_policy_config, uneven_pairs
from tests.helpers.vllm_stand_in import Reply, served  # noqa: F401
from tests.rollouts.test_adapter_server import options
from tests.rollouts.test_adapter_sync import lora, make_trainer
from tests.rollouts.test_vllm_engine import mismatches
from trl_consistency import ConsistencyError, ConsistencyEvalCallback, OnPolicyConsistencyTrainer


pytestmark = pytest.mark.long


def make(served, tmp_path, model_dir, **others):  # noqa: F811
    settings = {"max_steps": 4, "learning_rate": 5e-2, "vllm_overlap": True, "per_device_train_batch_size": 4}
    settings |= {**options(served), **others}  # an epoch has four steps
    return make_trainer(tmp_path, str(model_dir), lora(), **settings)


def asked(served):  # noqa: F811
    """The number of the adapter that answered, the temperature and the prompts of each request."""
    numbers, requests = {}, []
    for path, body in served.requests:
        if path == "/v1/load_lora_adapter":
            numbers[body["lora_name"]] = len(numbers)
        elif path == "/v1/completions":
            requests.append((numbers[body["model"]], body["temperature"], body["prompt"]))
    return requests


@pytest.mark.parametrize("loss_type", ["divergence", "policy_gradient"])
def test_rollouts_are_one_step_off_policy(loss_type, served, tmp_path, model_dir):  # noqa: F811
    trainer = make(served, tmp_path, model_dir, loss_type=loss_type, vllm_check_every=1)
    trainer.train()
    # The first adapter is sent at the start of the trainer, the next before the first step.
    assert [number for number, *_ in asked(served)] == [1, 1, 2, 3]
    first, *others = mismatches(trainer)
    assert first < 1e-4 < 1e-2 < min(others), "the policy has moved on since"
    name = "sampling/origin/difference"
    differences = [log[name] for log in trainer.state.log_history if "step_time" in log and name in log]
    assert len(differences) == 3, "the policy before the first step is checked once"
    assert max(differences) < 1e-4, "they come from the policy that was sent"
    assert trainer.rollout_engine._origin.passed
    trainer.rollout_loss.reference.check()


def test_the_server_samples_while_the_model_trains(served, tmp_path, model_dir, monkeypatch):  # noqa: F811
    trainer = make(served, tmp_path, model_dir)
    complete, compute_loss = served.complete, trainer.compute_loss
    arrived, trained = threading.Event(), threading.Event()
    waited = []

    def slow(**body):
        arrived.set()
        if len(asked(served)) > 1:  # all but the first
            waited.append(trained.wait(60))
        return complete(**body)

    def train_meanwhile(*args, **kwargs):
        if trainer.state.global_step < 3:  # the last step has nothing to wait for
            assert arrived.wait(60)
        trained.set()
        return compute_loss(*args, **kwargs)

    monkeypatch.setattr(served, "complete", slow)
    monkeypatch.setattr(trainer, "compute_loss", train_meanwhile)
    trainer.train()
    assert waited == [True] * 3


@pytest.mark.parametrize("streaming", [False, pytest.param(True, marks=pytest.mark.long)])
def test_prompts_come_in_the_same_order(streaming, served, tmp_path, model_dir):  # noqa: F811
    """Over several epochs, with micro-batches."""

    def prompts(overlap):
        served.requests.clear()
        pairs = uneven_pairs()
        trainer = OnPolicyConsistencyTrainer(
            model=str(model_dir),
            args=make_on_policy_config(
                tmp_path, use_vllm=True, vllm_overlap=overlap, max_steps=7, per_device_train_batch_size=2,
                gradient_accumulation_steps=3, **options(served),
            ),
            train_dataset=pairs.to_iterable_dataset() if streaming else pairs,
            processing_class=make_tokenizer(),
            peft_config=lora(),
        )  # fmt: skip
        trainer.train()
        return [tuple(map(tuple, of_request)) for *_, of_request in asked(served)]

    expected = prompts(overlap=False)
    assert prompts(overlap=True) == expected
    assert len(expected) == 7
    assert len(set(expected)) > 2


def test_evaluations_have_the_present_policy(served, tmp_path, model_dir):  # noqa: F811
    """They come between the rollouts that were begun and the step that trains on them."""
    trainer = make_trainer(
        tmp_path, str(model_dir), lora(), uneven_pairs(4),
        **{"max_steps": 3, "learning_rate": 5e-2, "vllm_overlap": True, "eval_strategy": "steps", "eval_steps": 1},
        **options(served),
    )  # fmt: skip
    trainer.add_callback(
        ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=1, max_new_tokens=4, batch_size=64)
    )
    trainer.train()
    numbers = {temperature: [number for number, of, _ in asked(served) if of == temperature] for temperature in (0, 1)}
    # The guard, before the first step and after each
    assert numbers[0] == [1, 2, 3, 4]
    # The first two batches to train on: the second was begun before the first step.
    assert numbers[1][:2] == [1, 1]
    evaluations = [
        log["eval_sampling/sampling_logp_difference/mean"] for log in trainer.state.log_history if "eval_loss" in log
    ]
    assert len(evaluations) == 3
    assert max(evaluations) < 1e-4


@pytest.mark.parametrize("every", [1, 10])
def test_an_engine_without_the_adapter_is_caught(every, served, tmp_path, model_dir, monkeypatch):  # noqa: F811
    trainer = make(served, tmp_path, model_dir, max_steps=10, vllm_check_every=every)
    complete = served.complete
    monkeypatch.setattr(served, "complete", lambda **body: complete(**{**body, "model": "held"}))
    with pytest.raises(ConsistencyError, match=r"do not come from the policy.*fit the base model without its adapter"):
        trainer.train()


def test_a_server_that_fails_meanwhile(served, tmp_path, model_dir, monkeypatch):  # noqa: F811
    trainer = make(served, tmp_path, model_dir)
    complete = served.complete

    def fail(**body):
        if len(asked(served)) > 2:
            raise Reply(500, "out of memory")
        return complete(**body)

    with monkeypatch.context() as patched:
        patched.setattr(served, "complete", fail)
        with pytest.raises(ConsistencyError, match=r"did not answer: 500, out of memory. See its log.*resume"):
            trainer.train()
    assert trainer.state.global_step == 2
    trainer.rollout_engine.bring_policy(2)  # as before an evaluation: the server is back
    trainer.train()
    assert trainer.state.global_step == 4


class StopsAfterTwo(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 2


def test_rollouts_for_a_step_that_never_comes_are_dropped(served, tmp_path, model_dir):  # noqa: F811
    trainer = make(served, tmp_path, model_dir)
    trainer.add_callback(StopsAfterTwo())
    trainer.train()
    assert len(asked(served)) == 3
    assert trainer._ahead._begun is None
    assert trainer.rollout_engine.in_background is None


def test_resumption(served, tmp_path, model_dir):  # noqa: F811
    make(
        served, tmp_path, model_dir, max_steps=2, lr_scheduler_type="constant", save_strategy="steps", save_steps=2
    ).train()
    resumed = make(served, tmp_path, model_dir, lr_scheduler_type="constant")
    served.requests.clear()
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
    assert [number for number, *_ in asked(served)] == [0, 0], "the first batch comes from the present policy again"
    other = make(served, tmp_path, model_dir, lr_scheduler_type="constant", vllm_overlap=False)
    with pytest.raises(ConsistencyError, match="`vllm_overlap`: true there, false here"):
        other.train(resume_from_checkpoint=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "needs a vLLM server"),
        ({"use_vllm": True}, "needs a vLLM server"),
        ({"num_iterations": 2}, "more than one step old"),
        ({"steps_per_generation": 2}, "more than one step old"),
        ({"completion_length_schedule": [2, 4]}, "known only after the step"),
        ({"loss_type": "policy_gradient", "vllm_importance_sampling_correction": False}, "which only the correction"),
    ],
)
def test_where_it_cannot_work(given, message, tmp_path):
    serving = {} if message.startswith("needs") else {"use_vllm": True, "vllm_mode": "server"}
    with pytest.raises(
        ConsistencyError, match=f"`vllm_overlap`.*{message}|`.*` is not available with `vllm_overlap`: .*{message}"
    ):
        make_on_policy_config(tmp_path, vllm_overlap=True, **serving, **given)
