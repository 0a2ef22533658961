"""What the header of a recipe says."""

import re
from textwrap import wrap

from tests.recipes.estimates import Bytes
from tests.recipes.table import Recipe


WIDTH = 119
LABEL = 15
GLUE = "\0"  # in place of spaces at which no line may end

_PAIRS = "`pairs.jsonl`: one JSON object a line with `clean_prompt` and `perturbed_prompt` (text or chat messages)."
_BASELINE = (
    "Hyper-parameters are those of the BCT baseline of Han et al. (2026, arXiv 2605.21834): batch 64, learning rate {rate}, {rank}one "
    "epoch, greedy targets, Adam beta 0.9/0.95, constant rate."
)


def _what_bct(recipe: Recipe) -> str:
    reference = " The targets come from the model in 4 bits, which is the reference." * (recipe.weights == "qlora")
    if recipe.weights == "full":
        return (
            "answers every distinct clean prompt once with the untrained model, then trains all weights to give those answers "
            f"to the perturbed prompts. {_BASELINE.format(rate='1e-6', rank='')} But the baseline trains an adapter, at 1e-5. "
            "No rate for all weights is on record: 1e-6 is ACT's."
        )
    return (
        "answers every distinct clean prompt once with the untrained model, then trains a rank-32 adapter to give those "
        f"answers to the perturbed prompts. {_BASELINE.format(rate='1e-5', rank='rank 32, ')}{reference}"
    )


def _what_both(recipe: Recipe) -> str:
    return (
        "trains a rank-32 adapter to give the untrained model's clean answers to the perturbed prompts (BCT), with the "
        "residual stream that the untrained model has on the clean prompts (ACT). "
        f"{_BASELINE.format(rate='1e-5', rank='rank 32, ')} The weight of ACT, 1e-4, is from the notes of the AttCT code. "
        "No settings for the two together are on record: tune them with the logged `bct_loss` and `act_loss`."
    )


def _what_act(recipe: Recipe) -> str:
    first = (
        "pulls the residual stream on the perturbed prompt towards the untrained model's on the clean prompt, at the tokens "
        "that both end with. No answer is generated. "
    )
    if recipe.weights == "full":
        return first + (
            "Settings on record for ACT on all weights: learning rate 1e-6 (a replication on Gemma-2-2B), loss weight 1e-4, "
            "batch up to 16, one epoch of 4,000 prompts (the notes of the AttCT code). Adam's betas and the schedule are not "
            "on record. That replication lost 11 points of MMLU: see docs/act.md, and measure."
        )
    reference = " The reference's activations come from the model in 4 bits." * (recipe.weights == "qlora")
    return first + (
        "Settings on record for ACT with LoRA: query and value projections at rank 8 (a replication on Llama-3.1-8B), "
        "learning rate 5e-6, loss weight 1e-4, batch up to 16, one epoch of 4,000 prompts (the notes of the AttCT code). The "
        f"LoRA alpha, Adam's betas and the schedule are not on record.{reference}"
    )


def _what_opct(recipe: Recipe) -> str:
    first = (
        f"the model answers each perturbed prompt {recipe.rollouts} times. At every token of the answers, its distribution is "
        f"pulled towards the untrained model's on the clean prompt. Settings on record (the code of Han et al., 2026): "
        f"{recipe.prompts} prompts of {recipe.rollouts} rollouts a step, "
    )
    estimate = "the divergence is exact over the vocabulary (`loss_type: policy_gradient` is their estimate)"
    if recipe.threat == "sycophancy":
        rate = "1e-5"
        rest = (
            "up to 2048 tokens each, learning rate 1e-5, constant, LoRA rank 32, Adam's betas 0.9 and 0.95, one epoch."
        )
        other = f" What differs here: {estimate}, the temperature is 1, and a quarter of the rows are anchors."
    else:
        rate = "5e-6"
        rest = (
            "temperature 1, up to 1024 tokens each, learning rate 5e-6, constant, LoRA rank 32, Adam's betas 0.9 and 0.95, "
            "one to three epochs."
        )
        other = f" What differs here: {estimate}, and a quarter of the rows are anchors."
    if recipe.weights == "full":
        other += f" They train an adapter, at {rate}. No rate for all weights is on record: 1e-6 is ACT's."
    if recipe.weights == "qlora":
        other += " The reference is the model in 4 bits with its adapter off: no second model is loaded."
    return first + rest + other


def _data(recipe: Recipe) -> str:
    cue = {"sycophancy": "cue stands before the question", "jailbreak": "wrapper stands before the request"}[
        recipe.threat
    ]
    sentences = [_PAIRS]
    if recipe.threat == "jailbreak":
        sentences += [
            "It also needs benign requests in the same wrappers: otherwise the model learns to refuse wrappers.",
            "The untrained model must refuse the bare harmful requests.",
        ]
    if "act" in recipe.method:
        sentences.append(
            f"The {cue}, since ACT compares what comes after it. The model card says how much the pairs share."
        )
    sentences.append("docs/threats.md says how to make them.")
    if recipe.method == "opct":
        sentences.append("The pairs' own clean prompts serve as anchors; name others with `anchor_dataset_name`.")
    return " ".join(sentences)


def _hardware(recipe: Recipe, memory: Bytes | None) -> str:
    micro, accumulation = recipe.batch()
    several = "several GPUs divide `gradient_accumulation_steps` by their number"
    samples_more = memory is not None and memory.training is not None and memory.training < memory.most
    if samples_more and recipe.method != "opct":
        return " ".join(
            [
                f"{memory.most / 2**30:.1f} GiB on one GPU while {recipe.options()['target_batch_size']} targets are made at a time "
                f"(`target_batch_size`), and {memory.training / 2**30:.1f} GiB while it trains, if all rows are as long as `max_length` "
                "allows. Shorter rows take less, and so does a lower `target_batch_size`. The libraries and the driver take some more. "
                "Computed by `trl-consistency estimate` from the model's shape; not measured.",
                recipe.hardware,
            ]
        ).strip()
    if samples_more:
        rollouts = micro * accumulation
        at_once = recipe.options().get("rollout_batch_size")
        sampled = f"{at_once} of the step's {rollouts} rollouts" if at_once else f"the {rollouts} rollouts of a step"
        return (
            f"{memory.most / 2**30:.1f} GiB on one GPU while {sampled} are sampled at once, and "
            f"{memory.training / 2**30:.1f} GiB while it trains on {micro} of them at a time, if all rows are as long as "
            "`max_length` allows: less for shorter rows. The libraries and the driver take some more. Computed by `trl-consistency "
            f"estimate` from the model's shape; not measured. On {several}: each then samples its share. With `use_vllm: true`, "
            "vLLM keeps the samples within its own memory."
        )
    if memory is not None:
        computed = (
            f"{memory.most / 2**30:.1f} GiB on one GPU if all rows are as long as `max_length` allows, and some more for the "
            "libraries and the driver. Computed by `trl-consistency estimate` from the model's shape; not measured."
        )
        return " ".join([computed, *[f"On {several}."] * (recipe.method == "opct"), recipe.hardware]).strip()
    uncomputed = "the memory was not computed: `python -m tests.recipes --estimate` does, in minutes to an hour."
    batch = f"The batch of a step is {micro} rollouts times {accumulation}; on {several}."
    return " ".join([uncomputed, *[batch] * (recipe.method == "opct")])


def _status(recipe: Recipe) -> str:
    template = "its chat template" if recipe.model.template else "a stand-in for its chat template"
    text = (
        "NOT RUN HERE at this size: no model hub was at hand. A test trains two steps with this file, on a tiny random model "
        f"of the same architecture with {template}. No results are claimed."
    )
    if recipe.weights == "qlora":
        text += " Needs `pip install -e '.[quantization]'`; docs/qlora.md says how to merge the adapter."
    return text


def _revision(revision: str | None) -> str:
    if revision:
        return "pinned below to the newest commit at the time of `make pin`."
    return "not pinned: the newest commit on the Hub is loaded. `make pin` writes its commit here as `model_revision`."


def _entry(label: str, text: str) -> list[str]:
    """Returns the lines of one entry, wrapped beside its label. Code stays on one line."""
    indent = "# " + " " * LABEL
    lines = wrap(
        re.sub("`[^`]+`", lambda code: code[0].replace(" ", GLUE), text),
        WIDTH,
        initial_indent=f"# {label:<{LABEL}}",
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(GLUE, " ") for line in lines]


def make_header(recipe: Recipe, revision: str | None = None, memory: Bytes | None = None) -> str:
    """Returns the header of a recipe, whose step takes so many bytes of memory."""
    what = {"bct": _what_bct, "act": _what_act, "bct_act": _what_both, "opct": _what_opct}[recipe.method](recipe)
    entries = {
        "What it does": what,
        "Model": recipe.note,
        "Revision": _revision(revision),
        "Data": _data(recipe),
        "Hardware": _hardware(recipe, memory),
        "Status": _status(recipe),
        "Made by": "`python -m tests.recipes`. Copy the file to change it.",
    }
    lines = [
        f"# {recipe.title}",
        "#",
        "#   accelerate launch --config_file recipes/accelerate_configs/single_gpu.yaml \\",
        f"#       -m {recipe.module} \\",
        f"#       --config recipes/{recipe.path} --dataset_name pairs.jsonl",
        "#",
    ]
    for label, text in entries.items():
        lines += _entry(label, text) if text else []
    return "\n".join(lines) + "\n"
