"""The rows of the benchmark: what is measured, and against whom."""

import atexit
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import GenerationConfig

from tests.benchmarks import engines, steps, training
from tests.benchmarks.sizes import Size
from tests.benchmarks.turns import Turns, growth_of_memory, run_command
from trl_consistency.cli import COMMANDS


SHARING = ("prompts once", "row by row")
ONCE = 100_000  # rows that are worked on in one turn only, which takes minutes


@dataclass
class Made:
    """
    A rival that is ready: `run` does one step, or trains with a callback that takes the turns. A step may return its own
    peak of memory in MiB.
    """

    run: Callable[[], Any]
    facts: dict[str, Any] = field(default_factory=dict)
    trains: bool = False


@dataclass(frozen=True)
class Row:
    """
    What is measured. The first rival is the one that others are compared with: ours. `needs` is a package without which
    the row is left out. `title` is short, `about` is its heading, and `note` a paragraph below its table. If the row has a ratio,
    new processes take over for each of its `sittings`.
    """

    name: str
    title: str
    about: str
    rivals: Callable[[Size], tuple[str, ...]]
    make: Callable[[str, Size, Turns], Made]
    most_turns: int = 100
    sittings: int = 2
    needs: str | None = None
    note: str = ""
    clock: str = "cpu"  # by which rivals are compared, or "wall" if other processes do part of the work


def _step(make: Callable[[str, Size], tuple[Callable[[], Any], dict[str, Any]]]) -> Callable[..., Made]:
    return lambda rival, size, turns: Made(*make(rival, size))


def _training(make: Callable[[str, Size, Turns], Callable[[], Any]]) -> Callable[..., Made]:
    return lambda rival, size, turns: Made(make(rival, size, turns), trains=True)


def _rivals(*names: str) -> Callable[[Size], tuple[str, ...]]:
    return lambda size: names


def _rows_of_data(size: Size, most: int | None = None) -> tuple[str, ...]:
    return tuple(str(rows) for rows in size.rows if most is None or rows <= most)


def _up_to_100_000(size: Size) -> tuple[str, ...]:
    """A million rows would take ten minutes more, and the times grow with the rows alone."""
    return _rows_of_data(size, 100_000)


# What a reader of the tables must know of the rivals' work

TEACHER = (
    "TRL's teacher is a second model, which is part of its peak. It reads the prompt with the cue with each rollout, since that trainer has one prompt "
    "for both. Our reference reads the prompt without it, once. So the ratio has three causes: shared prompts, the shorter prompt, and how the head is "
    "computed."
)
TRLS_LOSS = "The rival is the trainer's own loss, with `beta` 1 and temperature 1, on one row for each rollout."
OF_TRAINERS = "Batches, lengths and LoRA are ours, gradient checkpointing is off, and the rest are defaults."
HYBRID = (
    "The model has 6 blocks, width 512, a vocabulary of 4,096 and PyTorch's own kernels. A hybrid has attention in some blocks, and recurrent layers or "
    "short convolutions in the others. *Row by row* is our own step without sharing."
)
PADDED = (
    "Forward and backward alone, on a model of 6 blocks and width 512. The lengths are spread evenly, and the order is random. With lengths that differ "
    "less, less is gained. All rivals are our own trainer: 16 pairs a batch, or as many tokens in a packed row."
)
ENGINE = "vLLM runs in the training process (`vllm_mode: colocate`) with `vllm_max_model_length` 512 and 1 GiB for keys and values."
ENGINE_OF_EVALUATE = "Both are `trl-consistency evaluate`, with `--engine vllm` or `transformers`."


# Padding


def _padding(method: str) -> Callable[[str, Size, Turns], Made]:
    """An epoch of pairs of many lengths, as one optimizer step."""

    def make(rival: str, size: Size, turns: Turns) -> Made:
        from tests.benchmarks.test_padding_free import RIVALS, make_config_of_model, make_epoch

        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder)
        config = make_config_of_model(size.width // 2, size.blocks + 2)
        epoch, _ = make_epoch(Path(folder), config=config, method=[method], **RIVALS[rival])

        def run() -> None:
            epoch()

        return Made(run)

    return make


# Answers


def _answering(generate: Callable[[Any, Any, Size, int], Any]) -> Callable[[str, Size, Turns], Made]:
    """Short answers of a small model to many prompts, in batches or one at a time."""

    def make(rival: str, size: Size, turns: Turns) -> Made:
        model = size.model().eval()
        batch = 1 if rival == "one at a time" else 64
        return Made(lambda: generate(model, training.word_tokenizer(size.vocabulary), size, batch))

    return make


def _generate_targets(model: Any, tokenizer: Any, size: Size, batch: int) -> None:
    from trl_consistency.generation.targets import generate_targets

    prompts = training.random_ids(64, size.pairs[1] // 4, size.vocabulary)
    options = {"do_sample": False, "pad_token_id": 0, "eos_token_id": 1}
    config = GenerationConfig(max_new_tokens=8, min_new_tokens=8, **options)
    generate_targets(model, prompts, config, batch, seed=0, progress=False)


def _evaluate(model: Any, tokenizer: Any, size: Size, batch: int) -> None:
    from trl_consistency.evaluation import generate_answers

    prompts = [training.text(ids) for ids in training.random_ids(64, size.pairs[1] // 4, size.vocabulary)]
    generate_answers(model, tokenizer, prompts, max_new_tokens=8, batch_size=batch, progress=False)


# Data


def _on_data(work: Callable[[Dataset, Any], Any]) -> Callable[[str, Size, Turns], Made]:
    """Work on short pairs, which stay on disk."""

    def make(rival: str, size: Size, turns: Turns) -> Made:
        folder = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, folder)
        data = training.word_pairs_on_disk(folder, int(rival), 40, 8, size.vocabulary)
        tokenizer = training.word_tokenizer(size.vocabulary)

        def run() -> float:
            grown = growth_of_memory(lambda: work(data, tokenizer))
            data.cleanup_cache_files()  # the next turn begins anew
            return grown

        return Made(run, {"once": int(rival) >= ONCE})

    return make


def _prepare(data: Dataset, tokenizer: Any) -> None:
    from trl_consistency.data.prepare import align_pairs, prepare_pairs

    prepared = prepare_pairs(data, tokenizer, "train_dataset")
    align_pairs(prepared, tokenizer, "train_dataset", kinds=("suffix",))


def _lint(data: Dataset, tokenizer: Any) -> None:
    from trl_consistency.data.lint import lint_pairs

    lint_pairs(data, tokenizer)


def _pairs(rival: str, size: Size, turns: Turns) -> Made:
    from tests.benchmarks.test_pairs import write_questions

    def run() -> float:
        with tempfile.TemporaryDirectory() as folder:
            questions = write_questions(folder, max(int(rival) // 10, 1))
            options = ["--output_dir", f"{folder}/out", "--test_share", "0", "--pairs_per_source", "10"]
            names = ["sycophancy", "typos", "authority+case"]
            return run_command("pairs", "--dataset_name", str(questions), *options, "--perturbations", *names)

    return Made(run, {"once": int(rival) >= ONCE})


ROWS = {
    of.name: of
    for of in (
        Row(
            "opct_step",
            "OPCT's optimization step",
            "OPCT's optimization step (forward and backward, rollouts given), against TRL's `DistillationTrainer`",
            _rivals("ours", "TRL"),
            _step(steps.rollout_step),
            most_turns=5,
            note=f"{TEACHER} {TRLS_LOSS}",
        ),
        Row(
            "opct_training",
            "OPCT's whole step",
            "OPCT's whole step with its rollouts, against TRL's `DistillationTrainer` and its SDFT trainer",
            _rivals("ours", "TRL", "SDFT"),
            _training(training.on_policy),
            most_turns=4,
            sittings=4,
            note=f"{TEACHER} SDFT is TRL's experimental trainer for on-policy self-distillation. Its teacher is the initial model, which reads both prompts, one after the "
            f"other. The rivals have `DistillationConfig(beta=1.0)`, and `SDFTConfig` with `full_logits` and `distillation_alpha` 1. {OF_TRAINERS}",
        ),
        Row(
            "act_step",
            "ACT's step",
            "ACT's step, against the whole model with `output_hidden_states`",
            _rivals("ours", "whole model"),
            _step(steps.activation_step),
            most_turns=5,
            note="The rival calls the model with `output_hidden_states` for both sides. It computes the logits of all tokens, too, since the model does.",
        ),
        Row(
            "bct_training",
            "BCT's whole step",
            "BCT's whole step, against TRL's `SFTTrainer` on the same tokens",
            _rivals("ours", "SFTTrainer"),
            _training(training.supervised),
            note="The rival has `SFTConfig(max_length=None)`, and labels at the answers alone. It also logs entropy and token accuracy, as it does by default. The next table "
            f"compares with the bare model. {OF_TRAINERS}",
        ),
        Row(
            "bct_step",
            "BCT, forward and backward",
            "BCT's forward and backward alone, against the plain model with `labels`",
            _rivals("ours", "whole model"),
            _step(steps.supervised_step),
            most_turns=5,
            note="The rival is `model(input_ids, labels=labels).loss`, with LoRA layers as PEFT computes them.",
        ),
        Row(
            "kl_step",
            "KL's step",
            "KL's step, against all logits of both sides and torch's `kl_div`",
            _rivals("ours", "all logits"),
            _step(steps.divergence_step),
            most_turns=5,
            note="The rival takes the `log_softmax` of the answers' logits on both sides, with LoRA layers as PEFT computes them.",
        ),
        Row(
            "opct_checkpointed_step",
            "OPCT's step, checkpointed",
            "OPCT's optimization step with gradient checkpointing, against TRL's `DistillationTrainer`",
            _rivals("ours", "TRL"),
            _step(steps.checkpointed_rollout_step),
            most_turns=2,
            note=f"{TEACHER} {TRLS_LOSS}",
        ),
        Row(
            "opct_short_step",
            "OPCT's step, prompts of 200 tokens",
            "OPCT's optimization step on four rollouts as long as their prompts (200 tokens), against TRL's `DistillationTrainer`",
            _rivals("ours", "TRL"),
            _step(steps.short_rollout_step),
            most_turns=3,
            note=f"{TEACHER} {TRLS_LOSS}",
        ),
        Row(
            "hybrid_qwen3_5",
            "OPCT's step, hybrid like Qwen3.5",
            "OPCT's optimization step of a hybrid shaped like Qwen3.5, with each prompt computed once, and for each rollout",
            _rivals(*SHARING),
            _step(steps.hybrid_step("qwen3_5_text")),
            most_turns=3,
            note=HYBRID,
        ),
        Row(
            "hybrid_lfm2",
            "OPCT's step, hybrid like LFM2",
            "OPCT's optimization step of a hybrid shaped like LFM2, with each prompt computed once, and for each rollout",
            _rivals(*SHARING),
            _step(steps.hybrid_step("lfm2")),
            most_turns=3,
            note=HYBRID,
        ),
        Row(
            "padding_bct",
            "BCT, pairs of many lengths",
            "BCT on 32 pairs of 20 to 400 tokens: `padding_free`, `packing`, and batches with padding",
            _rivals("padding-free", "packed", "padded"),
            _padding("bct"),
            most_turns=2,
            note=PADDED,
        ),
        Row(
            "padding_kl",
            "KL, pairs of many lengths",
            "KL on 32 pairs of 20 to 400 tokens: `padding_free`, `packing`, and batches with padding",
            _rivals("padding-free", "packed", "padded"),
            _padding("kl"),
            most_turns=2,
            note=PADDED,
        ),
        Row(
            "padding_act",
            "ACT, pairs of many lengths",
            "ACT on 32 pairs of 20 to 400 tokens: `padding_free`, and batches with padding",
            _rivals("padding-free", "padded"),
            _padding("act"),
            most_turns=2,
            note=PADDED,
        ),
        Row(
            "lora_dropout",
            "BCT, lora_dropout 0.05",
            "BCT's forward and backward without `lora_dropout`, and with 0.05",
            _rivals("ours", "with dropout"),
            _step(steps.supervised_step),
            most_turns=3,
        ),
        Row(
            "consistency_metrics",
            "OPCT's whole step, with metrics",
            "OPCT's whole step with its rollouts, without `log_consistency_metrics` and with it",
            _rivals("ours", "with metrics"),
            _training(training.on_policy),
            most_turns=3,
        ),
        Row(
            "targets",
            "Targets",
            "64 targets of 8 tokens in batches, against one at a time",
            _rivals("batches", "one at a time"),
            _answering(_generate_targets),
            most_turns=2,
            note="A batch has 64 prompts of 64 tokens. Answers are greedy.",
        ),
        Row(
            "evaluate",
            "Answers of evaluate",
            "64 answers of 8 tokens in batches, against one at a time",
            _rivals("batches", "one at a time"),
            _answering(_evaluate),
            most_turns=2,
            note="A batch has 64 prompts of 64 tokens.",
        ),
        Row(
            "engine_rollouts",
            "Rollouts of SmolLM2",
            "64 rollouts of 64 tokens of SmolLM2, by vLLM and by transformers with each prompt computed once",
            _rivals(*engines.RIVALS),
            _step(engines.rollouts),
            most_turns=5,
            needs="vllm",
            note=ENGINE,
        ),
        Row(
            "engine_opct",
            "OPCT's whole step, SmolLM2",
            "OPCT's whole step with 64 rollouts of SmolLM2, by vLLM and by transformers",
            _rivals(*engines.RIVALS),
            _training(engines.whole_step),
            most_turns=3,
            needs="vllm",
            note=ENGINE,
        ),
        Row(
            "engine_evaluate",
            "evaluate, SmolLM2",
            f"`evaluate` of SmolLM2 and three adapters on {engines.PAIRS} pairs, start included, by vLLM and by transformers",
            _rivals(*engines.RIVALS),
            _step(engines.evaluation),
            most_turns=1,
            needs="vllm",
            note=ENGINE_OF_EVALUATE,
        ),
        Row(
            "engine_evaluate_many",
            "evaluate, tiny Llama",
            f"`evaluate` of a tiny Llama and three adapters on {engines.MANY_PAIRS:,} pairs, with answers of {engines.ANSWER} tokens, "
            "start included, by vLLM and by transformers",
            _rivals(*engines.RIVALS),
            _step(engines.evaluation_of_many),
            most_turns=3,
            needs="vllm",
            note=ENGINE_OF_EVALUATE,
        ),
        Row(
            "engine_overlap",
            "OPCT with a vLLM server",
            f"{engines.STEPS} steps of OPCT with 16 rollouts of SmolLM2 by a vLLM server, with `vllm_overlap` and without",
            _rivals(*engines.OVERLAPPING),
            _step(engines.overlap),
            most_turns=2,
            needs="vllm",
            clock="wall",
            note="Rollouts end where they end, after 32 tokens at most, and each prompt has four. The loss is `policy_gradient`.",
        ),
        Row(
            "prepare",
            "Pairs, rendered and aligned",
            "Rendering and aligning pairs, by their number",
            _rows_of_data,
            _on_data(_prepare),
            most_turns=2,
            note="A pair is two texts of 40 words without a chat template, and the tokenizer splits at spaces. Chat messages and a usual tokenizer take longer.",
        ),
        Row("lint", "lint", "`lint`, by the number of pairs", _up_to_100_000, _on_data(_lint), most_turns=2),
        Row(
            "pairs",
            "pairs",
            "`pairs`, by the number of pairs that it makes, its start included",
            _up_to_100_000,
            _pairs,
            most_turns=2,
        ),
        Row(
            "start",
            "--help",
            "`--help` of each command: its start",
            lambda size: tuple(COMMANDS),
            lambda rival, size, turns: Made(lambda: run_command(rival, "--help")),
            most_turns=2,
        ),
    )
}
ENGINES = tuple(name for name, row in ROWS.items() if row.needs == "vllm")
DATA = ("prepare", "lint", "pairs")
GUARDED = ("opct_step", "opct_training", "act_step", "bct_training", "bct_step", "kl_step", "targets", "evaluate")
SHAPES = ("opct_checkpointed_step", "opct_short_step", "hybrid_qwen3_5", "hybrid_lfm2")
PADDING = ("padding_bct", "padding_kl", "padding_act")
RATIOS = (*GUARDED, *SHAPES, *PADDING, "lora_dropout", "consistency_metrics", *ENGINES)
