"""
What `completion_length_schedule` of OPCT saves, and whether it cures as well. Prints the table of docs/opct.md.

```bash
python -m tests.benchmarks.horizon embedded:organism  # five seeds
python -m tests.benchmarks.horizon embedded:smollm2   # one seed, under an hour of a core
python -m tests.benchmarks.horizon embedded:smollm2 --places 2  # where in a rollout there is something to learn
```

It trains one after the other, and goes on where it was killed.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from time import process_time
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

from trl_consistency import OnPolicyConsistencyTrainer
from trl_consistency.evaluation import AnswerOptions, Results, evaluate
from trl_consistency.evaluation.rates.measures import compare, measure, pooled
from trl_consistency.evaluation.report.tables import cells_table
from trl_consistency.files import write_text
from trl_consistency.generation.model_identity import answer_cache
from trl_consistency.models.embedded_models import resolve_model
from trl_consistency.rollouts.horizon import Horizon
from trl_consistency.scripts import on_policy_consistency
from trl_consistency.scripts.pair_sets import load_sets
from trl_consistency.scripts.recipes import recipes_dir


class Subject(NamedTuple):
    """A recipe with the schedules to compare, the first of which is the whole horizon, and what is measured."""

    recipe: str
    seeds: Sequence[int]
    schedules: Sequence[Sequence[int]]
    splits: Sequence[str] | None
    max_pairs: int | None
    labels: Mapping[str, str]


SUBJECTS = {
    "embedded:organism": Subject(
        "quickstart/opct",
        range(1, 6),
        ((), (2, 6, 200), (2, 16)),
        None,
        None,
        {
            "sycophancy/test_wordings": "Sycophancy, held-out questions and wordings",
            "attack_success/test_wordings": "Attack success, held-out requests and wrappers",
            "perturbed_accuracy/test_wordings": "Right answers under the cue",
            "clean_accuracy/test": "Right answers without the cue",
            "benign_answered/test_wordings": "Benign requests answered, bare and in held-out wrappers",
            "clean_accuracy/control": "Right answers, control task",
        },
    ),
    "embedded:smollm2": Subject(
        "smollm2-135m-instruct/opct",
        (1,),
        ((), (6, 14, 40), (8, 24)),
        ("test",),
        250,
        {
            "sycophancy/test": "Sycophancy, held-out questions and wordings",
            "perturbed_accuracy/test": "Right answers under the cue",
            "clean_accuracy/test": "Right answers without the cue",
        },
    ),
}
# What the recipes measure or save meanwhile is no part of the cost.
TRAINING_ALONE = {
    "quickstart/opct": "--eval_strategy no --eval_on_start false --log_consistency_metrics false --save_strategy no",
    "smollm2-135m-instruct/opct": "--save_strategy no",
}


def flags_of(recipe: str, folder: Path, seed: int) -> list[str]:
    flags = ["--config", str(recipes_dir() / f"{recipe}.yaml"), *TRAINING_ALONE[recipe].split()]
    return [*flags, "--seed", str(seed), "--output_dir", str(folder)]


def train(recipe: str, schedule: Sequence[int], seed: int, folder: Path) -> dict[str, Any]:
    """
    Trains unless that is done. Returns the tokens and rollouts that were sampled, the CPU seconds, and how long
    rollouts might be.
    """
    file = folder / "cost.json"
    if not file.is_file():
        cost: dict[str, Any] = {"tokens": 0, "rollouts": 0, "sampling": 0.0}
        sample = OnPolicyConsistencyTrainer._generate_single_turn

        def counted(self: OnPolicyConsistencyTrainer, *args: Any, **kwargs: Any) -> list[list[int]]:
            start = process_time()
            completions = sample(self, *args, **kwargs)
            cost["sampling"] += process_time() - start
            cost["tokens"] += sum(map(len, completions))
            cost["rollouts"] += len(completions)
            return completions

        flags = ["--completion_length_schedule", *map(str, schedule)] if schedule else []
        with patch.object(OnPolicyConsistencyTrainer, "_generate_single_turn", counted):
            start = process_time()
            trainer = on_policy_consistency.run([*flags_of(recipe, folder, seed), *flags])
            cost["training"] = process_time() - start
        logs = [log for log in trainer.state.log_history if "completions/horizon" in log]
        cost["horizons"] = {log["step"]: log["completions/horizon"] for log in logs}
        write_text(file, json.dumps(cost))
    return dict(json.loads(file.read_text(encoding="utf-8")))


def divergence_by_place(recipe: str, steps: int, folder: Path) -> list[list[float]]:
    """Returns the divergences of all tokens at each place in a rollout, anchors aside, of a model that learns nothing."""
    found: dict[int, list[float]] = defaultdict(list)

    def noted(self: Horizon, divergence: torch.Tensor, rollouts: dict[str, torch.Tensor]) -> None:
        rows, places = rollouts["loss_mask"].nonzero(as_tuple=True)
        for row, place, value in zip(rows, places.tolist(), divergence.tolist(), strict=True):
            if not rollouts["is_anchor"][row]:
                found[place].append(value)

    with patch.object(Horizon, "add", noted):
        on_policy_consistency.run(
            [*flags_of(recipe, folder, seed=42), "--learning_rate", "1e-12", "--max_steps", str(steps)]
        )
    return [found[place] for place in sorted(found)]


def measure_adapter(subject: Subject, model: str, folder: Path) -> Results:
    adapted, tokenizer = AutoPeftModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    cache = answer_cache(folder / "answers", str(folder), adapted)
    sets = load_sets([model], subject.splits, subject.max_pairs, seed=0)
    return evaluate(adapted.eval(), tokenizer, sets, AnswerOptions(32, 64), cache=cache)


def cells(subject: Subject, costs: Sequence[Sequence[Mapping[str, Any]]], found: Sequence[Sequence[Results]]) -> Any:
    """Returns the cells by row. `costs` and `found` have one list for each schedule, with one entry for each seed."""
    table = {}
    for key, label in {
        "tokens": "Tokens generated",
        "sampling": "CPU seconds of sampling",
        "training": "CPU seconds of the whole training",
    }.items():
        means = [mean(cost[key] for cost in of_schedule) for of_schedule in costs]
        table[label] = [f"{value:,.0f} ({value / means[0]:.0%})" for value in means]
    lengths = [mean(cost["tokens"] / cost["rollouts"] for cost in of_schedule) for of_schedule in costs]
    table["Tokens of a rollout"] = [f"{length:.1f}" for length in lengths]
    for key, label in subject.labels.items():
        metric, name = key.split("/")
        samples = [pooled([results.sets[name].samples for results in of_schedule]) for of_schedule in found]
        table[label] = [str(measure(of_schedule)[metric]) for of_schedule in samples]
        differences = [str(compare(samples[0], of_schedule)[metric]) for of_schedule in samples[1:]]
        table[f"{label}: difference"] = ["", *differences]
    return table


def main(args: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        "python -m tests.benchmarks.horizon", description=__doc__.strip().partition("\n")[0]
    )
    parser.add_argument("model", choices=SUBJECTS)
    parser.add_argument("--seeds", type=int, metavar="N", help="only the first N seeds")
    said = "instead, print where in a rollout the divergence is before training, from the rollouts of so many steps"
    parser.add_argument("--places", type=int, metavar="STEPS", help=said)
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/horizon"), help="(%(default)s)")
    parsed = parser.parse_args(args)
    torch.set_num_threads(1)
    subject = SUBJECTS[parsed.model]
    resolve_model(parsed.model)  # Making it is no part of the first training's cost.
    if parsed.places:
        places = divergence_by_place(subject.recipe, parsed.places, parsed.output_dir / "places")
        total = sum(map(sum, places))
        for number, values in enumerate(places, 1):
            share = sum(map(sum, places[:number])) / total
            print(
                f"token {number}: {mean(values):.3f} in {len(values)} rollouts, {share:.0%} of the divergence so far"
            )
        return
    costs: list[list[dict[str, Any]]] = [[] for _ in subject.schedules]
    found: list[list[Results]] = [[] for _ in subject.schedules]
    for seed in subject.seeds[: parsed.seeds]:
        for place, schedule in enumerate(subject.schedules):
            name = "-".join(map(str, schedule)) or "whole"
            folder = parsed.output_dir / parsed.model.removeprefix("embedded:") / f"{name}-seed{seed}"
            costs[place].append(train(subject.recipe, schedule, seed, folder))
            found[place].append(measure_adapter(subject, parsed.model, folder))
            print(f"{name}, seed {seed}: {costs[place][-1]}", flush=True)
    names = [str(list(schedule)) if schedule else "whole horizon" for schedule in subject.schedules]
    print(cells_table(names, cells(subject, costs, found)))


if __name__ == "__main__":
    main()
