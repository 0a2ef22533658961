"""The pieces of `make gpu`: each returns its figures, by what they are."""

import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import LlamaForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3ForCausalLM
from trl.kernels.chunked_divergence import ChunkedDivergenceFunction
from trl.trainer.utils import add_fused_lm_head

from tests.benchmarks import steps
from tests.benchmarks.sizes import Size
from tests.benchmarks.test_prefix_sharing import ours as our_rollout_loss
from tests.benchmarks.test_prefix_sharing import trls
from tests.recipes.shapes import SHAPES
from trl_consistency.costs.operations import count_step, uncounted
from trl_consistency.errors import ConsistencyError
from trl_consistency.losses.supervised import supervised_row_losses
from trl_consistency.models.fused_lora import fuse_adapters
from trl_consistency.models.quantization import prevent_repacking
from trl_consistency.passes.prefix_sharing import PrefixSharing
from trl_consistency.passes.tree_attention import refused_kernels


GIB = 1 << 30
Figures = dict[str, float | str]


@dataclass(frozen=True)
class Scale:
    """The device, and with it the size: on a CPU only that a piece runs is of interest."""

    device: str

    @property
    def is_dry(self) -> bool:
        return self.device == "cpu"

    @property
    def turns(self) -> int:
        return 1 if self.is_dry else 7

    def size(self, checkpointing: bool = False) -> Size:
        """Batches: their rows are fewer on a GPU of 24 GiB than one would train with on a larger one."""
        if self.is_dry:
            return Size("tiny", 64, 4, 128, (16, 8, 4, 2, 1), (2, 12, 4), 1, ())
        return Size("gpu", 0, 0, 0, (1024, 256, 256, 8, 1), (4, 768, 256), self.turns, ())

    def check(self) -> None:
        """Raises [`ConsistencyError`] if there is no device."""
        if not torch.cuda.is_available():
            raise ConsistencyError(
                "torch sees no GPU here. `.venv/bin/python -m tests.benchmarks.gpu --cpu` does a dry run at a tiny size."
            )

    def device_name(self) -> str:
        """Returns the name of the device."""
        return "CPU (dry run)" if self.is_dry else torch.cuda.get_device_name()

    def seconds(self, work: Callable[[], Any]) -> float:
        """Returns the median of some turns, after one that warms up."""
        taken = []
        for _ in range(self.turns + 1):
            self._wait()
            start = time.perf_counter()
            work()
            self._wait()
            taken.append(time.perf_counter() - start)
        return median(taken[1:])

    def peak(self) -> float:
        """Returns the most GiB that tensors have taken so far."""
        return 0.0 if self.is_dry else torch.cuda.max_memory_allocated() / GIB

    def _wait(self) -> None:
        if not self.is_dry:
            torch.cuda.synchronize()

    def rate(self) -> float:
        """Returns the operations in a second of a large matrix product in bfloat16."""
        width = 64 if self.is_dry else 8192
        left, right = (torch.randn(width, width, device=self.device, dtype=torch.bfloat16) for _ in range(2))
        return 2 * width**3 / self.seconds(lambda: left @ right)


# The models' classes and shapes. Their weights are random here. Qwen3.5-4B's shape is not known for certain.
MODELS: dict[str, tuple[type, Callable[[], Any]]] = {
    "qwen3-4b": (Qwen3ForCausalLM, SHAPES["Qwen/Qwen3-4B-Instruct-2507"][0]),
    "llama-3.1-8b": (LlamaForCausalLM, SHAPES["meta-llama/Llama-3.1-8B-Instruct"][0]),
    "qwen3.5-4b": (
        Qwen3_5ForCausalLM,
        lambda: Qwen3_5TextConfig(
            vocab_size=248_320,
            hidden_size=2560,
            intermediate_size=9216,
            num_hidden_layers=32,
            num_attention_heads=16,
            num_key_value_heads=4,
            tie_word_embeddings=True,
        ),
    ),
}
TINY = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def make_model(name: str, scale: Scale, nf4: bool = False) -> Any:
    """Returns a model of random weights in bfloat16 or NF4."""
    kind, shape = MODELS[name]
    config = shape()
    if scale.is_dry:
        config = type(config)(**TINY, head_dim=16)
    with torch.device(scale.device):
        model = kind._from_config(config, dtype=torch.bfloat16)
    if nf4:
        _quantize(model, scale.device)
    return model.requires_grad_(False)


def _quantize(model: Any, device: str) -> None:
    """Replaces the linear layers of the blocks by ones of 4 bits, one after the other."""
    import bitsandbytes as bnb

    for block in model.model.layers:
        for name, layer in list(block.named_modules()):
            if isinstance(layer, nn.Linear):
                options = {"bias": layer.bias is not None, "compute_dtype": torch.bfloat16, "quant_type": "nf4"}
                packed = bnb.nn.Linear4bit(layer.in_features, layer.out_features, **options)
                packed.weight = bnb.nn.Params4bit(layer.weight.data.cpu(), requires_grad=False, quant_type="nf4")
                parent, _, attribute = name.rpartition(".")
                setattr(block.get_submodule(parent), attribute, packed.to(device))
    model.is_loaded_in_4bit = True
    prevent_repacking(model)


def adapted(model: Any, checkpointing: bool = True) -> Any:
    """Returns the model with an adapter, in training mode."""
    model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear")).train()
    if checkpointing:
        model.enable_input_require_grads()
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
    return model


def _losses(method: str, student: Any, size: Size, scale: Scale, reference: Any) -> dict[str, Callable[[], Any]]:
    """Returns the losses of TRL's step and of ours on the same batch."""

    def moved(batch: dict[str, Any]) -> dict[str, Any]:
        return {name: of.to(scale.device) for name, of in batch.items()}

    if method == "opct":
        batch = moved(steps.rollout_batch(size))
        ours = our_rollout_loss(student, "ours, with TRL's divergence")
        theirs = {} if reference is None else {"TRL": partial(trls(student, reference), batch)}
        return theirs | {"ours": partial(ours, batch)}
    batch = moved(steps.pair_batch(size, with_answers=method == "bct"))
    if method == "act":
        return {"ours": steps.our_pair_loss(student, "act", batch)}
    ids, labels = batch["input_ids"], batch["input_ids"].clone()
    labels[:, : -size.pairs[2]] = -100
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    add_fused_lm_head(student.get_base_model(), outputs=("log_probs", "entropy", "is_top1"))

    def ours_of_pairs() -> Any:
        rows = supervised_row_losses(student, student, {**inputs, "is_anchor": None}, "nll")[0]["bct"]
        return rows.sums.sum() / rows.counts.sum()

    return {"TRL": lambda: student(**inputs, fused_lm_head=True).loss, "ours": ours_of_pairs}


def step_piece(model: str, method: str, weights: str, scale: Scale) -> Figures:
    """Seconds, peak memory and utilisation of a step with LoRA, ours and TRL's."""
    nf4 = weights == "nf4"
    student = adapted(make_model(model, scale, nf4))
    # TRL needs a second model as its teacher; in 4 bits it is the first one's twin.
    reference = make_model(model, scale, nf4) if method == "opct" else None
    config = student.config.get_text_config()
    size = replace(scale.size(), vocabulary=config.vocab_size, width=config.hidden_size)
    held, rate = scale.peak(), scale.rate()
    figures: Figures = {"GiB held before": held, "TFLOP/s of a matrix product": rate / 1e12}
    setup = steps.rollout_setup(size) if method == "opct" else steps.pair_setup(size, method)
    needed = None if uncounted(student) else count_step(student, setup).step
    for rival, loss_of in _losses(method, student, size, scale, reference).items():
        if rival == "ours":  # the last
            fuse_adapters(student)
        if not scale.is_dry:
            torch.cuda.reset_peak_memory_stats()

        def step(loss_of: Callable[[], Any] = loss_of) -> None:
            with torch.autocast(scale.device, torch.bfloat16):
                loss = loss_of()
            loss.backward()
            student.zero_grad()

        seconds = scale.seconds(step)
        figures |= {f"{rival}, seconds": seconds, f"{rival}, peak GiB": scale.peak()}
        if needed is not None:
            figures[f"{rival}, share of the floor"] = needed / rate / seconds
    return figures


# Kernels


def head_piece(scale: Scale) -> Figures:
    """Seconds of the divergence over a large vocabulary, beside those of the bare matrix product."""
    tokens, width, vocabulary = (16, 64, 128) if scale.is_dry else (8192, 2560, 151_936)
    options = {"device": scale.device, "dtype": torch.bfloat16}
    student, reference = (torch.randn(tokens, width, **options) for _ in range(2))
    weight = torch.randn(vocabulary, width, **options) / width**0.5
    student.requires_grad_()
    nothing = (None, reference, weight, None, 1.0)

    def divergence() -> None:
        ChunkedDivergenceFunction.apply(student, weight, *nothing)[0].sum().backward()

    def product() -> None:
        for rows in student.detach().split(1024):
            rows @ weight.t()

    figures: Figures = {
        "bare matrix product, seconds": scale.seconds(product),
        "TRL's divergence, seconds": scale.seconds(divergence),
    }
    if importlib.util.find_spec("liger_kernel") is None:
        return {**figures, "Liger's divergence": "not installed"}
    from liger_kernel.chunked_loss import LigerFusedLinearJSDLoss

    labels = torch.zeros(tokens, dtype=torch.long, device=scale.device)
    loss = LigerFusedLinearJSDLoss(weight_hard_loss=0.0, weight_soft_loss=1.0, beta=1.0)
    figures["Liger's divergence, seconds"] = scale.seconds(
        lambda: loss(student, weight, reference, weight, labels).backward()
    )
    return figures


def flex_piece(scale: Scale) -> Figures:
    """
    A step is the reference's pass, the student's pass, the divergence, and the backward pass. It has no optimizer. The model has random
    weights in the shape of Qwen3-4B, in bfloat16, with LoRA of rank 16 on all linear layers and gradient checkpointing. One row holds
    a prompt and eight rollouts. Half of it is the prompt, and the reference's prompt has 64 tokens. A figure is the median of
    seven steps of one session, after two others. How far the seven spread was not recorded, so small differences may be chance. The
    dense mask ran first, so its first step at 512 tokens includes the start of the GPU. Peaks include the weights.
    """
    student = adapted(make_model("qwen3-4b", scale))  # with gradient checkpointing, so rollouts are packed
    config = student.config.get_text_config()
    ways = {"dense mask": PrefixSharing(flex_tokens=None), "FlexAttention": PrefixSharing(flex_tokens=1)}
    losses_of = {
        way: our_rollout_loss(student, "ours, with TRL's divergence", sharing) for way, sharing in ways.items()
    }

    def step(way: str, batch: dict[str, Any]) -> float:
        with torch.autocast(scale.device, torch.bfloat16):
            loss = losses_of[way](batch)
        loss.backward()
        student.zero_grad()
        return float(loss.detach())

    fuse_adapters(student)
    figures: Figures = {}
    for length in (128, 256) if scale.is_dry else (512, 1024, 2048, 4096, 8192):
        size = replace(scale.size(), vocabulary=config.vocab_size, rollouts=(length // 2, 64, length // 16, 8, 1))
        batch = {name: of.to(scale.device) for name, of in steps.rollout_batch(size).items()}
        losses, seconds = {}, {}
        for way in ways:
            start = time.perf_counter()
            losses[way] = step(way, batch)
            figures[f"{length} tokens, {way}, first step, seconds"] = time.perf_counter() - start
            if not scale.is_dry:
                torch.cuda.reset_peak_memory_stats()
            seconds[way] = scale.seconds(partial(step, way, batch))
            figures[f"{length} tokens, {way}, seconds"] = seconds[way]
            figures[f"{length} tokens, {way}, peak GiB"] = scale.peak()
        figures[f"{length} tokens, times as fast with FlexAttention"] = (
            seconds["dense mask"] / seconds["FlexAttention"]
        )
        difference = abs(losses["FlexAttention"] / losses["dense mask"] - 1)
        figures[f"{length} tokens, relative difference of losses"] = difference
    if not scale.is_dry:
        reason = refused_kernels(config, torch.bfloat16, torch.device(scale.device, 0))
        refused = {way: sharing.refused or {} for way, sharing in ways.items()}
        figures["FlexAttention"] = f"refused: {reason}; {refused}" if reason or any(refused.values()) else "ran"
    return figures


# Whole programs


def _command(scale: Scale, *words: str) -> Figures:
    start = time.perf_counter()
    run = subprocess.run([sys.executable, *words], capture_output=True, text=True)
    last = (run.stdout.strip().splitlines() or [""])[-1]
    if run.returncode not in (0, 5):  # 5: pytest has found no test
        raise RuntimeError(f"{' '.join(words)}: {last}")
    return {"seconds": time.perf_counter() - start, "last line": last}


def tests_piece(scale: Scale) -> Figures:
    """The tests that are marked `gpu`."""
    dry = ["--collect-only"] if scale.is_dry else []
    return _command(
        scale,
        *("-m", "pytest", "-p", "no:xdist", "-q", "-m", "gpu", *dry),
        *("tests/trainer", "tests/rollouts", "tests/passes"),
    )


def recipe_piece(recipe: str, scale: Scale) -> Figures:
    """One of SmolLM2's recipes, end to end."""
    command = "on_policy_consistency" if recipe.startswith("opct") else "consistency"
    module = f"trl_consistency.scripts.{command}"
    if scale.is_dry:
        return _command(scale, "-m", module, "--help")
    if importlib.util.find_spec("gguf") is None:
        return {"missing": "the package of SmolLM2's weights is not installed (`make real`)"}
    with tempfile.TemporaryDirectory() as folder:
        config = f"recipes/smollm2-135m-instruct/{recipe}.yaml"
        return _command(scale, "-m", module, "--config", config, "--use_cpu", "false", "--output_dir", folder)


def vllm_piece(scale: Scale) -> Figures:
    """The tests with vLLM itself, where it is installed."""
    if importlib.util.find_spec("vllm") is None:
        return {"missing": "vLLM is not installed"}
    return _command(scale, "-m", "pytest", "-p", "no:xdist", "-q", "-m", "vllm and not slow", "tests/rollouts")


PIECES: dict[str, Callable[[Scale], Figures]] = {
    "tests": tests_piece,
    "head": head_piece,
    "flex": flex_piece,
    **{
        f"{model}-{method}-{weights}": partial(step_piece, model, method, weights)
        for model in MODELS
        for method in ("bct", "act", "opct")
        for weights in ("bf16", "nf4")
    },
    **{f"smollm2-{recipe}": partial(recipe_piece, recipe) for recipe in ("bct", "act", "kl", "opct")},
    "vllm": vllm_piece,
}
