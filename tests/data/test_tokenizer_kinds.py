"""Pairs under every kind of tokenizer: the token ids are those that the tokenizer itself gives, and the loss is that of these."""

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from tests.helpers.chats import assistant, user
from tests.helpers.models import CHATML, make_config
from trl_consistency import ConsistencyTrainer


SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "The quick brown fox jumps over the lazy dog. What is it? abcdefghijklmnopqrstuvwxyz 0123456789",
    "What is the capital of France? The capital of France is Paris.",
    "user\nI think the answer is Lyon, but I am not sure.\nassistant\nWhat do you think?\n",
]
QUESTIONS = {
    "What is the capital of France?": "Paris.",
    "Which fox is quick? 12345": "the fox 12",
    "Is it\nbrown?": "it is\nnot.",
}
BYTES = [f"<0x{number:02X}>" for number in range(256)]


def byte_level(add_prefix_space=False, digits=False, normalizer=None):
    backend = Tokenizer(models.BPE())
    steps = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space)])
    backend.decoder = decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=420, special_tokens=SPECIAL, initial_alphabet=alphabet)
    )
    return backend


def unigram(prepend, normalizer=None):
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend)
    backend.decoder = decoders.Metaspace(prepend_scheme=prepend)
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.train_from_iterator(
        TEXTS, trainers.UnigramTrainer(vocab_size=120, special_tokens=SPECIAL, unk_token="<unk>")
    )
    return backend


def word_pieces():
    backend = Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    backend.train_from_iterator(TEXTS, trainers.WordPieceTrainer(vocab_size=150, special_tokens=SPECIAL))
    return backend


def of_llama_2():
    backend = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(parts)
    backend.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=450, special_tokens=[*SPECIAL, *BYTES]))
    return backend


def with_ends(backend, end=""):
    """Puts tokens around every text, as Llama and BERT do."""
    ids = [(token, backend.token_to_id(token)) for token in ("<s>", end) if token]
    backend.post_processor = processors.TemplateProcessing(single=f"<s> $A {end}".strip(), special_tokens=ids)
    return backend


def stripping(backend):
    """Spaces beside the special tokens belong to them, as in Phi-3."""
    tokens = ("<|im_start|>", "<|im_end|>")
    backend.add_special_tokens([AddedToken(token, lstrip=True, rstrip=True, special=True) for token in tokens])
    return backend


KINDS = {
    "bytes": byte_level,
    "bytes, with a space before": lambda: byte_level(add_prefix_space=True),
    "bytes, digits apart": lambda: byte_level(digits=True),
    "bytes, NFC": lambda: byte_level(normalizer=normalizers.NFC()),
    "bytes, begun": lambda: with_ends(byte_level()),
    "bytes, begun and ended": lambda: with_ends(byte_level(), "<|im_end|>"),
    "bytes, stripping": lambda: stripping(byte_level()),
    "unigram, first": lambda: unigram("first"),
    "unigram, always": lambda: unigram("always"),
    "unigram, NFKC": lambda: unigram("always", normalizers.NFKC()),
    "word pieces": word_pieces,
    "llama 2": of_llama_2,
    "llama 2, stripping": lambda: stripping(with_ends(of_llama_2())),
}


def make(kind, template):
    return PreTrainedTokenizerFast(
        tokenizer_object=KINDS[kind](),
        **{"pad_token": "<pad>", "eos_token": "<|im_end|>", "bos_token": "<s>", "unk_token": "<unk>"},
        chat_template=template,
    )


def make_rows(template):
    cue = "I think the answer is Lyon. "
    if template:
        return [
            {"clean_prompt": user(asked), "perturbed_prompt": user(cue + asked), "completion": assistant(answer)}
            for asked, answer in QUESTIONS.items()
        ]
    return [
        {"clean_prompt": f"{asked}\nAnswer:", "perturbed_prompt": f"{cue}{asked}\nAnswer:", "completion": f" {answer}"}
        for asked, answer in QUESTIONS.items()
    ]


def ids_of(tokenizer, prompt, completion):
    """The rival: the tokenizer's own ids of a prompt, and of it with its completion."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"], tokenizer(prompt + completion)["input_ids"]
    asked = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    return asked, tokenizer.apply_chat_template(prompt + completion, return_dict=True)["input_ids"]


@pytest.mark.parametrize("template", [CHATML, None], ids=["chat", "text"])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_loss_are_those_of_the_tokenizer(tmp_path, kind, template):
    tokenizer, rows = make(kind, template), make_rows(template)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Qwen3Config(vocab_size=len(tokenizer) + 7, num_key_value_heads=1, head_dim=16, **sizes)
    model = Qwen3ForCausalLM(config).eval()
    options = {"method": "bct", "per_device_train_batch_size": 3, "max_steps": 1, "learning_rate": 1e-9}
    trainer = ConsistencyTrainer(
        model, make_config(tmp_path, **options), train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    total = count = 0
    for row, prepared in zip(rows, trainer.train_dataset, strict=True):
        completion = prepared["completion_ids"]
        for prompt, column in (("clean_prompt", "clean_ids"), ("perturbed_prompt", "perturbed_ids")):
            asked, whole = ids_of(tokenizer, row[prompt], row["completion"])
            if kind == "bytes, begun and ended" and not template:
                asked, whole = asked[:-1], whole[:-1]  # a prompt that is ended cannot be continued
            assert prepared[column] == asked
            assert [*asked, *completion] == (whole if template else [*whole, tokenizer.eos_token_id])
        ids, start = torch.tensor([prepared["perturbed_ids"] + completion]), len(prepared["perturbed_ids"])
        with torch.no_grad():
            logits = model(ids).logits[0, start - 1 : -1]
        total += F.cross_entropy(logits, ids[0, start:], reduction="sum").item()
        count += len(completion)
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(total / count, rel=1e-5)
