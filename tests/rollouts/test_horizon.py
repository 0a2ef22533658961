from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from transformers import TrainerState

from tests.helpers.models import make_pairs
from tests.helpers.on_policy import make_on_policy_config, make_trainer, moved
from trl_consistency import ConsistencyError
from trl_consistency.rollouts.horizon import Horizon


def make_horizon(tmp_path, schedule, longest=64):
    args = make_on_policy_config(tmp_path, max_completion_length=longest, completion_length_schedule=schedule)
    return Horizon(args, Accelerator(cpu=True))


def rollouts(rows=4, width=8, anchors=()):
    is_anchor = torch.tensor([row in anchors for row in range(rows)])
    return {"loss_mask": torch.ones(rows, width, dtype=torch.long), "is_anchor": is_anchor}


def by_place(values, rows=4):
    """Divergence of compared tokens that depends on the place in the rollout alone."""
    return torch.tensor(values).repeat(rows)


@pytest.mark.parametrize(
    "given", [[], [4], [4, 17], [4, 17, 10], [0, 16], [8, 4], [4, 16, 0], [4, 16, 10, 2], ["auto"], [4.5, 16], 7]
)
def test_faulty_schedule(tmp_path, given):
    with pytest.raises(ConsistencyError, match="`completion_length_schedule` must be "):
        make_on_policy_config(tmp_path, max_completion_length=16, completion_length_schedule=given)


def test_linear_growth(tmp_path):
    horizon = make_horizon(tmp_path, [4, 16, 6])
    assert [horizon(step) for step in range(9)] == [4, 6, 8, 10, 12, 14, 16, 16, 16]


def test_without_a_schedule(tmp_path):
    assert make_horizon(tmp_path, None)(0) == 64


def test_automatic_growth_when_the_last_tokens_are_learned(tmp_path):
    horizon = make_horizon(tmp_path, [8, 64])
    assert horizon(0) == 8
    # The first quarter has divergence 4, the last 3: above half of 4.
    horizon.add(by_place([4.0, 4, 9, 9, 9, 9, 3, 3]), rollouts())
    assert horizon(1) == 8
    # What counts is the first tokens' divergence when training began, not now.
    horizon.add(by_place([0.1, 0.1, 9, 9, 9, 9, 2, 2]), rollouts())
    assert horizon(2) == 16
    # Nothing was added since: it stays.
    assert horizon(3) == 16
    # Rollouts that all end before its last quarter say nothing.
    horizon.add(by_place([0.0] * 8), rollouts())
    assert horizon(4) == 16
    for expected in (32, 64, 64):
        horizon.add(by_place([0.0] * horizon.length), rollouts(width=horizon.length))
        assert horizon(5) == expected


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_automatic_growth_from_few_tokens(tmp_path, length):
    """The last token is one of the last quarter, however few there are."""
    horizon = make_horizon(tmp_path, [length, 64])
    for divergence in (4.0, 2.0):
        assert horizon(0) == length
        horizon.add(by_place([divergence] * length), rollouts(width=length))
    assert horizon(1) == 2 * length


def test_automatic_growth_leaves_anchors_out(tmp_path):
    horizon = make_horizon(tmp_path, [8, 64])
    divergence = torch.cat([torch.full((8,), 4.0), torch.zeros(24)])  # anchors, which do not diverge
    horizon.add(divergence, rollouts(anchors=(1, 2, 3)))
    assert horizon(1) == 8
    assert horizon.first == 4.0


def test_automatic_growth_goes_on_from_its_state(tmp_path):
    horizon, other = make_horizon(tmp_path, [8, 64]), make_horizon(tmp_path, [8, 64])
    horizon.add(by_place([4.0, 4, 9, 9, 9, 9, 1, 1]), rollouts())
    assert horizon(1) == 16
    horizon.add(by_place([4.0] * 12 + [1.0] * 4), rollouts(width=16))
    state = SimpleNamespace(global_step=2, stateful_callbacks={"Horizon": horizon.state()})
    other.on_train_begin(None, state, None)
    assert other(2) == horizon(2) == 32
    other.on_train_begin(None, SimpleNamespace(global_step=0, stateful_callbacks={}), None)
    assert other(0) == 8


def test_rollouts_grow_and_evaluations_are_whole(tmp_path):
    trainer = make_trainer(
        tmp_path, make_pairs(8), eval_dataset=make_pairs(4), max_steps=4, max_completion_length=12,
        completion_length_schedule=[2, 12, 2], eval_strategy="steps", eval_steps=1,
    )  # fmt: skip
    moved(trainer.model)
    trainer.train()
    train = [log for log in trainer.state.log_history if "completions/horizon" in log]
    assert [log["completions/horizon"] for log in train] == [2, 7, 12, 12]
    assert all(log["completions/max_length"] <= log["completions/horizon"] for log in train)
    assert train[0]["completions/max_length"] == 2
    evaluated = [log["eval_completions/max_length"] for log in trainer.state.log_history if "eval_loss" in log]
    assert min(evaluated) > 7


def test_the_horizon_truncates_nothing(tmp_path):
    """No rollout of this model ends within 2 tokens, or 12."""

    def make(schedule):
        return make_trainer(
            tmp_path, make_pairs(4), max_steps=1, max_completion_length=12, mask_truncated_completions=True,
            completion_length_schedule=schedule, generation_kwargs={"suppress_tokens": [2]},
        )  # fmt: skip

    trainer = make([2, 12, 9])
    trainer.train()
    assert trainer.state.log_history[0]["completions/compared_ratio"] == 1
    with pytest.raises(ConsistencyError, match="No token of any rollout was compared"):
        make(None).train()


def test_resumed_under_another_schedule(tmp_path):
    """`resume_changed` allows it: rollouts are not longer than the present schedule has them."""
    before = make_horizon(tmp_path, [8, 64])
    before.length, before.first = 32, 4.0
    state = TrainerState(global_step=3, stateful_callbacks={"Horizon": before.state()})
    for schedule, expected in (([8, 64], 32), ([4, 16], 16), ([48, 64], 48)):
        horizon = make_horizon(tmp_path, schedule)
        horizon.on_train_begin(None, state, None)
        assert horizon(3) == expected


def test_estimate_below_zero_is_no_measure_of_the_first_tokens(tmp_path):
    """By sampled tokens, half of it would be more than it."""
    horizon = make_horizon(tmp_path, [8, 64])
    horizon.add(by_place([-1.0, -1, 0, 0, 0, 0, -3, -3]), rollouts())
    assert horizon(1) == 8
    assert horizon.first is None
    horizon.add(by_place([4.0, 4, 9, 9, 9, 9, 3, 3]), rollouts())
    assert horizon(2) == 8
    assert horizon.first == 4.0
