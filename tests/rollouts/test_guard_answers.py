"""The guard's answers by the engine of the rollouts, on stand-ins for vLLM; `test_with_vllm.py` has vLLM itself."""

import pytest

from tests.helpers.held_out import CONTROL, PAIRS
from tests.helpers.vllm_stand_in import colocated, served  # noqa: F401
from tests.rollouts.test_adapter_server import options
from tests.rollouts.test_adapter_sync import lora, make_trainer
from trl_consistency import ConsistencyError, ConsistencyEvalCallback
from trl_consistency.evaluation.answers.generate import AnswerOptions, generate_ids
from trl_consistency.generation import targets


def answers(trainer, engine=None):
    prompts = [row["perturbed_ids"] for row in trainer.train_dataset]
    return generate_ids(
        trainer.model, trainer.processing_class, prompts, AnswerOptions(6, 3, progress=False), engine=engine
    )


@pytest.mark.long
@pytest.mark.parametrize("where", ["colocated", "served"])
def test_the_engine_answers_as_the_policy(where, request, tmp_path, model_dir, monkeypatch):
    engine = request.getfixturevalue(where)
    of_mode = options(engine) if where == "served" else {}
    trainer = make_trainer(tmp_path, str(model_dir), lora(), max_steps=4, learning_rate=5e-2, **of_mode)
    guard = ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=2, max_new_tokens=4, batch_size=3)
    trainer.add_callback(guard)
    with monkeypatch.context() as patched:
        patched.delattr(targets, "_generate")  # by which transformers would answer
        trainer.train()
    measured = [log for log in trainer.state.log_history if "eval_consistency/clean_accuracy/control" in log]
    assert [log["step"] for log in measured] == [0, 2, 4]
    # Once at the start of the trainer, and once for each step: the guard and the rollouts after it share the policy.
    assert len(trainer.rollout_engine._adapter_sync.seconds) == 1 + 5
    before, now = answers(trainer), answers(trainer, trainer._answering_engine(6))
    assert now == before
    with trainer.model.disable_adapter():
        assert answers(trainer) != now
    generation = trainer.rollout_engine._generation
    assert (generation.temperature, generation.max_completion_length) == (1.0, trainer.args.max_completion_length)


@pytest.mark.parametrize(
    ("processes", "mode", "tensor_parallel", "answers_each"),
    [(1, "server", 1, True), (2, "server", 1, False), (2, "colocate", 1, True), (2, "colocate", 2, False)],
)
def test_processes_that_answer_unequally_many_prompts(
    processes, mode, tensor_parallel, answers_each, colocated, tmp_path, model_dir  # noqa: F811
):  # fmt: skip
    trainer = make_trainer(tmp_path, str(model_dir), lora())
    engine = trainer.rollout_engine
    engine._args.vllm_mode, engine._args.vllm_tensor_parallel_size = mode, tensor_parallel
    assert engine.answers_each_process(processes) == answers_each


def test_an_engine_whose_context_is_too_short(colocated, tmp_path, model_dir):  # noqa: F811
    trainer = make_trainer(tmp_path, str(model_dir), lora(), vllm_max_model_length=64)
    longest = max(len(row["perturbed_ids"]) for row in trainer.train_dataset)
    assert answers(trainer, trainer._answering_engine(64 - longest))
    with pytest.raises(
        ConsistencyError, match=f"is 64, which.*of the guard.*has {longest} tokens.*Raise it to at least 65"
    ):
        answers(trainer, trainer._answering_engine(65 - longest))
