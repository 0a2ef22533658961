"""Every kind of tokenizer, small ones that are trained on a few texts."""

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast


SPECIAL = ["<pad>", "<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>"]
TEXTS = [
    "The quick brown fox jumps over the lazy dog. What is it? abcdefghijklmnopqrstuvwxyz 0123456789",
    "What is the capital of France? The capital of France is Paris.",
    "user\nI think the answer is Lyon, but I am not sure.\nassistant\nWhat do you think?\n",
]
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
    "bytes, begun and closed by another token": lambda: with_ends(byte_level(), "</s>"),
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
