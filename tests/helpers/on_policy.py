"""Small on-policy trainers, and a naive replay of their loss."""

import math
import random

import torch
import torch.nn.functional as F
from peft import LoraConfig

from tests.helpers.models import QUIET, make_model, make_pairs, make_tokenizer
from tests.helpers.runs import LORA
from trl_consistency import OnPolicyConsistencyConfig, OnPolicyConsistencyTrainer
from trl_consistency.data.rendering import render_prompt


END = 2


def make_on_policy_config(output_dir, **options):
    defaults = {"output_dir": str(output_dir), **QUIET, "num_generations": 2, "logging_steps": 1}
    return OnPolicyConsistencyConfig(**{**defaults, **options})


def make_trainer(tmp_path, pairs=None, model=None, lora=False, eval_dataset=None, kind="qwen3", **options):
    arguments = {name: options.pop(name) for name in ("ref_model", "anchor_dataset", "callbacks") if name in options}
    target_modules = options.pop("target_modules", LORA["target_modules"])
    return OnPolicyConsistencyTrainer(
        model=make_model(kind) if model is None else model,
        args=make_on_policy_config(tmp_path, **options),
        train_dataset=make_pairs() if pairs is None else pairs,
        eval_dataset=eval_dataset,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(**{**LORA, "target_modules": target_modules}) if lora else None,
        **arguments,
    )


def uneven_pairs(rows=8):
    """Prompts of uneven lengths, the clean one now the longer and now the shorter of the two."""
    pairs = make_pairs(rows, completion=False)
    swapped = pairs.map(
        lambda row, index: (
            {"clean_prompt": row["perturbed_prompt"], "perturbed_prompt": row["clean_prompt"]} if index % 2 else row
        ),
        with_indices=True,
    )
    return swapped


def answer(prompt_ids, number):
    """A made-up rollout that depends on the prompt and on its number alone; some do not come to an end."""
    generator = random.Random(f"{prompt_ids}/{number}")
    ids = [generator.randrange(3, 384) for _ in range(generator.randrange(1, 8))]
    return ids if generator.random() < 0.3 else [*ids, END]


def likelihood(ids):
    """Made-up log-probabilities of a rollout in the engine that drew it; of some tokens it knows none."""
    return [math.nan if token % 7 == 0 else token % 5 - 8.0 for token in ids]


def replay(trainer, make=answer, likelihood=None):
    """Has a trainer take made-up rollouts in the place of sampled ones."""

    seen = {}

    def generate(prompt_ids, *args, **kwargs):
        is_eval = not trainer.model.training
        generations = (is_eval and trainer.args.num_generations_eval) or trainer.args.num_generations
        completions = []
        for ids in map(tuple, prompt_ids):
            seen[ids] = seen.get(ids, -1) + 1
            completions.append(make(list(ids), seen[ids] % generations))
        if likelihood is not None:
            trainer._engine_log_probs = [likelihood(ids) for ids in completions]
        return completions

    trainer._generate_single_turn = generate
    return trainer


def naive_divergence(p_logits, q_logits, beta, temperature):
    """Of the student (p) from the reference (q), by position, from whole logits."""
    p, q = (F.log_softmax(logits.double() / temperature, -1) for logits in (p_logits, q_logits))

    def kl(a, b):
        return (a.exp() * (a - b)).sum(-1)

    if beta in (0, 1):
        return kl(p, q) if beta else kl(q, p)
    mixture = torch.logsumexp(
        torch.stack([p + torch.log(torch.tensor(1 - beta)), q + torch.log(torch.tensor(beta))]), 0
    )
    return beta * kl(q, mixture) + (1 - beta) * kl(p, mixture)


def moved(model, seed=1, scale=0.05):
    """The model a little away from where it was, as training would leave it."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(scale * torch.randn_like(parameter))
    return model


def naive_loss(
    student, reference, pairs, generations, make=answer, beta=1.0, temperature=1.0, mask=lambda ids: [1] * len(ids)
):
    """The token-mean over all rollouts, one at a time."""
    tokenizer = make_tokenizer()
    total, tokens = 0.0, 0
    for row in pairs:
        clean, perturbed = (render_prompt(tokenizer, row[side]) for side in ("clean_prompt", "perturbed_prompt"))
        for number in range(generations):
            ids = make(perturbed, number)
            p = student(torch.tensor([perturbed + ids])).logits[0, len(perturbed) - 1 : -1]
            with torch.no_grad():
                q = reference(torch.tensor([clean + ids])).logits[0, len(clean) - 1 : -1]
            kept = torch.tensor(mask(ids))
            total = total + (naive_divergence(p, q, beta, temperature) * kept).sum()
            tokens += int(kept.sum())
    return total / max(tokens, 1)
