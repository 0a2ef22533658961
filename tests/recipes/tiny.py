"""Tiny random models of the recipes' architectures, with the models' own chat templates where TRL ships them, and tiny pairs."""

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma3ImageProcessorPil, Gemma3Processor, PreTrainedTokenizerFast

from tests.helpers.architectures import make, qwen3_5_with_vision
from tests.helpers.models import CHATML, make_tokenizer
from tests.recipes.table import Model


# In ChatML unless named here: what the model writes at the end of its turn, and what its template writes at the beginning
ENDS = {
    "llama3_1": ("<|eot_id|>", "<|begin_of_text|>"),
    "gemma": ("<end_of_turn>", "<bos>"),
    "gemma3": ("<end_of_turn>", "<bos>"),
    "gptoss": ("<|return|>", None),
}
CONTROL_TOKENS = re.compile(r"<\|\w+\|>|<(?:start|end)_of_turn>")
PICTURES = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
LENGTH = 2048  # of the context, which holds the system messages of the templates

REQUESTS = [
    "open a jammed jar",
    "fold a paper boat",
    "whistle louder",
    "pick a ripe melon",
    "peel an onion",
    "tie a bow",
]


def chat_template(name: str | None) -> str:
    """Returns a chat template that TRL ships, or a stand-in."""
    return files("trl").joinpath("chat_templates", f"{name}.jinja").read_text(encoding="utf-8") if name else CHATML


def tokenizer_of(template: str | None, **marks: str) -> PreTrainedTokenizerFast:
    """Returns a tokenizer for which the marks of the template's turns are control tokens, as in the model's own, and others by name."""
    text = chat_template(template)
    tokenizer = make_tokenizer(text)
    end, begin = ENDS.get(str(template), ("<|im_end|>", None))
    turns = sorted({*CONTROL_TOKENS.findall(text), end})
    tokenizer.add_tokens([*turns, *([begin] if begin else []), *marks.values()], special_tokens=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        eos_token=end,
        bos_token=begin,
        pad_token=tokenizer.pad_token,
        additional_special_tokens=turns,
        extra_special_tokens=marks,
        chat_template=text,
    )


def processing_class_of(model: Model) -> PreTrainedTokenizerFast | Gemma3Processor:
    """Returns a tokenizer, or for multimodal models Gemma 3's processor: Qwen3.5's needs torchvision, and text is all that it reads."""
    if not model.kind.endswith("_with_vision"):
        return tokenizer_of(model.template)
    tokenizer = tokenizer_of(model.template, **PICTURES)
    return Gemma3Processor(Gemma3ImageProcessorPil(), tokenizer, chat_template=tokenizer.chat_template)


def make_tiny(model: Model, folder: Path) -> Path:
    """Saves a tiny model for the recipes of a model of the table, with its tokenizer."""
    processing_class = processing_class_of(model)
    tokenizer = getattr(processing_class, "tokenizer", processing_class)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": LENGTH, "eos_token_id": tokenizer.eos_token_id}
    if model.kind == "qwen3_5_with_vision":
        tiny = qwen3_5_with_vision(**sizes)
    elif model.kind == "gemma3_with_vision":
        tiny = make(model.kind, of_text=sizes)
    else:
        blocks = {"hidden_size": 64, "intermediate_size": 64} if model.kind == "gpt_oss" else {}  # multiples of 32
        tiny = make(model.kind, **sizes, **blocks)
    tiny.to(torch.bfloat16).save_pretrained(folder)
    processing_class.save_pretrained(folder)
    if model.kind == "gpt_oss":
        quantize_experts(folder)
    return folder


def quantize_experts(folder: Path) -> None:
    """Puts random experts in MXFP4 into a saved GPT-OSS, as its checkpoint on the Hub has them: blocks of 32 values in 4 bits, and a scale."""
    weights = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    for name in [name for name in weights if re.search(r"experts\.(gate_up|down)_proj$", name)]:
        experts, columns, rows = weights.pop(name).shape
        blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), dtype=torch.uint8)
        weights[f"{name}_blocks"] = blocks
        weights[f"{name}_scales"] = torch.full((experts, rows, columns // 32), 124, dtype=torch.uint8)  # 2 ** -3
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": kept}
    (folder / "config.json").write_text(json.dumps(config))


def make_rows(threat: str) -> list[dict[str, Any]]:
    """Returns harmless pairs of a threat: the cue or the wrapper stands first."""
    rows = []
    for number, request in enumerate(REQUESTS * 2):
        clean = f"How do I {request}?" + " Be brief." * (number // len(REQUESTS))
        cue = {
            "sycophancy": "I think that nobody can.",
            "jailbreak": "You are an actor who stays in the role of a helper.",
        }[threat]
        prompts = {"clean_prompt": clean, "perturbed_prompt": f"{cue} {clean}"}
        rows.append({side: [{"role": "user", "content": text}] for side, text in prompts.items()})
    return rows
