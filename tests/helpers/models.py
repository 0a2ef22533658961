"""Tiny models and tokenizers, built from configs, and pairs for them: nothing is downloaded."""

from collections.abc import Sequence
from pathlib import Path

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from trl_consistency import ConsistencyConfig


CHATML = (
    "{%- if tools %}<|im_start|>system\nTools: {{ tools | tojson }}<|im_end|>\n{% endif -%}"
    "{%- for message in messages -%}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{% if no_think %}<think></think>{% endif %}{%- endif -%}"
)


TEXTS = [
    "What is the capital of France? The capital of France is Paris.",
    "I think the answer is Lyon, but I am not sure. What do you think?",
    "The quick brown fox jumps over the lazy dog. Which animal is quick?",
    "You are a helpful assistant. Answer the question in one word.",
    "A B C D 0 1 2 3 4 5 6 7 8 9 system user assistant",
]


def make_tokenizer(chat_template: str | None = CHATML, vocab_size: int = 384) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with ChatML turns, trained on a few sentences."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    backend.train_from_iterator(TEXTS, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=special[1:2],
    )
    tokenizer.chat_template = chat_template
    return tokenizer


def make_ending_tokenizer(chat_template: str | None = CHATML) -> PreTrainedTokenizerFast:
    """The same tokenizer, which appends its end-of-sequence token to every text, as with `add_eos_token`."""
    tokenizer = make_tokenizer(chat_template)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|im_end|>", special_tokens=[("<|im_end|>", tokenizer.eos_token_id)]
    )
    return tokenizer


def make_sentencepiece_tokenizer(merges: Sequence[tuple[str, str]] = ()) -> PreTrainedTokenizerFast:
    """A tokenizer of characters that, as those of Llama 2 and Mistral do, puts a space in front of every text."""
    tokens = ["<unk>", "</s>", "▁", *map(chr, range(33, 127))]
    merges = [*merges, *(("▁", letter) for letter in "ABCDT(")]
    vocab = {token: number for number, token in enumerate([*tokens, *map("".join, merges)])}
    backend = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>"))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>", eos_token="</s>", pad_token="</s>")


def make_model(
    kind: str = "qwen3",
    vocab_size: int = 384,
    seed: int = 0,
    kind_of: type[LlamaForCausalLM] = LlamaForCausalLM,
    attention: str | None = None,
) -> LlamaForCausalLM | Qwen3ForCausalLM:
    """A random two-block model of about 50,000 parameters, with no dropout."""
    torch.manual_seed(seed)
    options = {
        "vocab_size": vocab_size,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": 2,
    }
    if kind == "llama":
        return kind_of(LlamaConfig(**options))
    return Qwen3ForCausalLM._from_config(Qwen3Config(**options, head_dim=8), attn_implementation=attention)


def with_rope(kind: str, limit: int) -> LlamaForCausalLM:
    """A model whose positions depend on the longest row of a batch, beyond a limit."""
    config = make_model("llama").config
    factors = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4} if kind == "longrope" else {"factor": 2.0}
    config.rope_parameters = {
        "rope_type": kind, "rope_theta": 10_000.0, "original_max_position_embeddings": limit, **factors,
    }  # fmt: skip
    config.original_max_position_embeddings = limit  # as Phi-3 has it
    return LlamaForCausalLM(config)


def make_pairs(rows: int = 8, completion: bool = True, chat: bool = True) -> Dataset:
    """Pairs of uneven lengths about made-up countries; the cue comes before the question."""

    def prompt(text: str) -> list[dict] | str:
        return [{"role": "user", "content": text}] if chat else text

    columns: dict[str, list] = {"clean_prompt": [], "perturbed_prompt": []}
    if completion:
        columns["completion"] = []
    for row in range(rows):
        question = f"What is the capital of country {row}?" + " Think." * (row % 3)
        columns["clean_prompt"].append(prompt(question))
        columns["perturbed_prompt"].append(prompt(f"I think the answer is Lyon{'!' * (row % 4)} {question}"))
        if completion:
            columns["completion"].append(f"City {row}" + " indeed" * (row % 5) + ".")
    return Dataset.from_dict(columns)


# A quiet float32 run on one CPU core
QUIET = {
    "report_to": "none",
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "disable_tqdm": True,
    "save_strategy": "no",
    "learning_rate": 1e-2,
    "max_completion_length": 8,
}


def make_config(output_dir: Path | str, **options) -> ConsistencyConfig:
    """Options for a quiet float32 run on one CPU core."""
    return ConsistencyConfig(**{"output_dir": str(output_dir), **QUIET, **options})


def keeping_all_logits(model):
    """The model ignores `logits_to_keep`, as some do."""
    forward = model.forward
    model.forward = lambda *args, logits_to_keep=0, **kwargs: forward(*args, **kwargs)
    return model
