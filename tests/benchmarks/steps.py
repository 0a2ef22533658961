"""Steps of fixed batches: forward and backward, without a trainer around them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor

from tests.benchmarks import floor
from tests.benchmarks.sizes import Size
from tests.benchmarks.test_prefix_sharing import ours as our_rollout_loss
from tests.benchmarks.test_prefix_sharing import trls
from trl_consistency import ConsistencyConfig
from trl_consistency.costs.setup import Setup
from trl_consistency.data.collators import PairCollator
from trl_consistency.losses.paired import Objectives, PairedLoss
from trl_consistency.losses.supervised import supervised_row_losses
from trl_consistency.models.fused_lora import fuse_adapters
from trl_consistency.passes.prefix_sharing import PrefixSharing
from trl_consistency.passes.reference import Reference


Step = tuple[Callable[[], Any], dict[str, Any]]


def adapted(size: Size, is_ours: bool, lora_dropout: float = 0.0) -> Any:
    """Returns the model of a size with the LoRA adapter that every rival has. Ours computes it as our trainers do."""
    model = size.model()
    torch.manual_seed(0)
    model = get_peft_model(model, LoraConfig(r=8, target_modules="all-linear", lora_dropout=lora_dropout)).train()
    if is_ours:
        fuse_adapters(model)
    return model


def facts_of(model: Any, setup: Setup, operations: int) -> dict[str, Any]:
    """What the floor of a step is computed from."""
    return {"operations": operations, "products": floor.matrix_products(model, setup)}


def _backward(model: Any, loss_of: Callable[[], Tensor]) -> Callable[[], None]:
    def step() -> None:
        loss_of().backward()
        model.zero_grad()

    return step


# Rollouts


def rollout_batch(size: Size) -> dict[str, Tensor]:
    """Returns rollouts of random tokens after random prompts, all of the same lengths."""
    perturbed, clean, rollout, generations, prompts = size.rollouts
    generator = torch.Generator().manual_seed(0)

    def tokens(rows: int, length: int) -> Tensor:
        return torch.randint(size.vocabulary, (rows, length), generator=generator)

    ids = {
        "prompt_ids": tokens(prompts, perturbed).repeat_interleave(generations, 0),
        "clean_ids": tokens(prompts, clean).repeat_interleave(generations, 0),
        "completion_ids": tokens(prompts * generations, rollout),
    }
    return ids | {name.replace("ids", "mask"): torch.ones_like(of) for name, of in ids.items()}


def rollout_setup(size: Size) -> Setup:
    """The setup of the student's side. (`needed_by_rollouts` counts the reference's shorter prompt.)"""
    perturbed, _, rollout, generations, prompts = size.rollouts
    return Setup(("opct",), perturbed + rollout, rollout, generations * prompts, num_generations=generations)


def needed_by_rollouts(model: Any, size: Size) -> int:
    """Returns the operations of a step. `count_step` takes both prompts to be of one length, and the clean one is shorter here."""
    setup = rollout_setup(size)
    shorter = Setup(**{**vars(setup), "max_length": size.rollouts[1] + setup.answer})
    return floor.operations(model, setup) - floor.reference(model, setup) + floor.reference(model, shorter)


def rollout_step(rival: str, size: Size, checkpointing: bool = False) -> Step:
    student, batch = adapted(size, rival == "ours"), rollout_batch(size)
    if checkpointing:
        student.enable_input_require_grads()
        student.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    loss_of = our_rollout_loss(student, "ours") if rival == "ours" else trls(student, size.model())
    facts = facts_of(student, rollout_setup(size), needed_by_rollouts(student, size))
    return _backward(student, lambda: loss_of(batch)), facts


def checkpointed_rollout_step(rival: str, size: Size) -> Step:
    return rollout_step(rival, size, checkpointing=True)


def short_rollout_step(rival: str, size: Size) -> Step:
    """Rollouts as long as their prompts, and half as many: 200, 180 and 200 tokens, four rollouts at the full size."""
    perturbed, _, _, generations, prompts = size.rollouts
    shape = perturbed * 25 // 64, perturbed * 45 // 128, perturbed * 25 // 64, max(generations // 2, 1), prompts
    return rollout_step(rival, replace(size, rollouts=shape))


def hybrid_step(kind: str) -> Callable[[str, Size], Step]:
    """The step of a hybrid, with each prompt computed once or for each rollout. Its size is always the same."""

    def make(rival: str, size: Size) -> Step:
        from tests.benchmarks.test_hybrid_sharing import make_step, make_student

        step = make_step(make_student(kind), PrefixSharing(rival == "prompts once"))
        step()  # the trial of the strategies
        return lambda: (step(), None)[1], {}

    return make


# Pairs


def cue_of(size: Size) -> int:
    """Returns the tokens at the start of a prompt by which the two sides differ."""
    return max(size.pairs[1] // 10, 1)


def pair_batch(size: Size, with_answers: bool) -> dict[str, Tensor]:
    """Returns pairs of prompts that differ in their first tenth."""
    rows, prompt, answer = size.pairs
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(2, size.vocabulary, (rows, prompt), generator=generator)
    perturbed = clean.clone()
    cue = cue_of(size)
    perturbed[:, :cue] = torch.randint(2, size.vocabulary, (rows, cue), generator=generator)
    perturbed[:, cue - 1] = (clean[:, cue - 1] + 1) % size.vocabulary
    pairs = [{"clean_ids": a, "perturbed_ids": b} for a, b in zip(clean.tolist(), perturbed.tolist(), strict=True)]
    if with_answers:
        answers = torch.randint(2, size.vocabulary, (rows, answer), generator=generator).tolist()
        pairs = [pair | {"completion_ids": ids} for pair, ids in zip(pairs, answers, strict=True)]
    return PairCollator(pad_token_id=0, with_completions=with_answers, with_reference=True)(pairs)


def pair_setup(size: Size, method: str) -> Setup:
    rows, prompt, answer = size.pairs
    answer = answer if method in ("bct", "kl") else 0
    return Setup((method,), prompt + answer, answer, rows)


def needed_by_pairs(model: Any, size: Size, method: str) -> int:
    """Returns the operations of a step. `count_step` takes ACT to compare whole prompts, and the sides share nothing of the cue."""
    setup = pair_setup(size, method)
    unread = floor.unread_start(model, setup, cue_of(size)) if method == "act" else 0
    return floor.operations(model, setup) - unread


def _facts_of_pairs(model: Any, size: Size, method: str) -> dict[str, Any]:
    return facts_of(model, pair_setup(size, method), needed_by_pairs(model, size, method))


def our_pair_loss(model: Any, method: str, batch: dict[str, Tensor]) -> Callable[[], Tensor]:
    args = ConsistencyConfig(output_dir="unused", method=method, use_cpu=True, bf16=False)
    paired_loss = PairedLoss(Objectives.of(args), model, Reference(model, adapter_off=True))

    def loss() -> Tensor:
        losses, _ = paired_loss(model, batch)
        return losses[method].sums.sum() / losses[method].counts.sum()

    return loss


def activation_step(rival: str, size: Size) -> Step:
    model, batch = adapted(size, rival == "ours"), pair_batch(size, with_answers=False)
    shared = int(batch["suffix"][0, 2])

    def states_of(input_ids: Tensor) -> list[Tensor]:
        outputs = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids), output_hidden_states=True)
        return [state[:, -shared:] for state in outputs.hidden_states[1:]]

    def whole_model() -> Tensor:
        with torch.no_grad(), model.disable_adapter():
            reference = states_of(batch["clean_input_ids"])
        pairs = zip(states_of(batch["input_ids"]), reference, strict=True)
        return sum((h - target).square().sum(-1).mean() for h, target in pairs) / size.blocks  # type: ignore[return-value]

    loss_of = our_pair_loss(model, "act", batch) if rival == "ours" else whole_model
    return _backward(model, loss_of), _facts_of_pairs(model, size, "act")


def divergence_step(rival: str, size: Size) -> Step:
    model, batch = adapted(size, rival == "ours"), pair_batch(size, with_answers=True)
    answer = size.pairs[2]

    def log_probs(input_ids: Tensor) -> Tensor:
        logits = model(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).logits
        return logits[:, -answer - 1 : -1].log_softmax(-1)

    def all_logits() -> Tensor:
        with torch.no_grad(), model.disable_adapter():
            reference = log_probs(batch["clean_input_ids"])
        divergence = torch.nn.functional.kl_div(
            log_probs(batch["input_ids"]), reference, log_target=True, reduction="none"
        )
        return divergence.sum(-1).mean()

    loss_of = our_pair_loss(model, "kl", batch) if rival == "ours" else all_logits
    return _backward(model, loss_of), _facts_of_pairs(model, size, "kl")


def supervised_step(rival: str, size: Size) -> Step:
    from trl.trainer.utils import add_fused_lm_head

    model = adapted(size, rival != "whole model", 0.05 if rival == "with dropout" else 0.0)
    batch = pair_batch(size, with_answers=True)
    ids = batch["input_ids"]
    labels = ids.clone()
    labels[:, : -size.pairs[2]] = -100
    mask = torch.ones_like(ids)
    add_fused_lm_head(model.get_base_model(), outputs=("log_probs", "entropy", "is_top1"))

    def ours() -> Tensor:
        inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels, "is_anchor": None}
        rows = supervised_row_losses(model, model, inputs, "nll")[0]["bct"]
        return rows.sums.sum() / rows.counts.sum()

    def whole_model() -> Tensor:
        return model(input_ids=ids, attention_mask=mask, labels=labels).loss

    return _backward(model, whole_model if rival == "whole model" else ours), _facts_of_pairs(model, size, "bct")
