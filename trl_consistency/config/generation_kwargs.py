"""Checks `generation_kwargs` for transformers before any weights load."""

from typing import Any

from transformers import GenerationConfig

from ..errors import ConsistencyError, one_line
from .types import check_keys


_SPECULATIVE = "which drafts tokens for one prompt at a time, and here prompts come in batches. Leave it out."
_NO_TOKENIZER = "for which generation has no tokenizer."
_REMOTE = "which transformers loads as code from the Hub. Leave it out."
_COMPILED = "but answers are generated without compilation. Leave it out."

# Refused keys, and why
REFUSED = {
    "assistant_early_exit": _SPECULATIVE,
    "compile_config": _COMPILED,
    "constraints": _REMOTE,
    "continuous_batching_config": "but batches are made by this trainer (`target_batch_size`). Leave it out.",
    "disable_compile": _COMPILED,
    "diversity_penalty": _REMOTE,
    "dola_layers": _REMOTE,
    "force_words_ids": _REMOTE,
    "is_assistant": _SPECULATIVE,
    "max_time": "and the speed of the machine would decide where an answer ends. Set `max_completion_length`.",
    "min_length": "which counts the prompt, and the padding of its batch. Set `min_new_tokens`.",
    "num_beam_groups": _REMOTE,
    "penalty_alpha": _REMOTE,
    "prompt_lookup_num_tokens": _SPECULATIVE,
    "return_dict_in_generate": "but only the tokens of an answer are used. Leave it out.",
    "stop_strings": f"{_NO_TOKENIZER} Set `eos_token_id`, or `use_vllm: true` with its `stop`.",
    "token_healing": f"{_NO_TOKENIZER} Leave it out.",
    "use_mtp": _SPECULATIVE,
}


# What counts the padding, with which one tokens and with which longer parts
PENALTIES = ("repetition_penalty", "encoder_repetition_penalty")
NGRAMS = ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size")


def check_generation_kwargs(kwargs: dict[str, Any], repetition_penalty: float = 1.0) -> None:
    """Raises [`ConsistencyError`] if `kwargs`, with a `repetition_penalty`, show that transformers cannot generate with them."""
    for key in kwargs:
        if key in REFUSED:
            raise ConsistencyError(f"`generation_kwargs` sets `{key}`, {REFUSED[key]}")
    check_keys("generation_kwargs", kwargs, set(GenerationConfig().to_dict()))
    penalized = {"repetition_penalty": repetition_penalty, **kwargs}
    penalties = [key for key in PENALTIES if penalized.get(key) not in (None, 1)]
    ngrams = [key for key in NGRAMS if (kwargs.get(key) or 0) > 1]
    if penalties and ngrams:
        raise ConsistencyError(
            f"`{penalties[0]}` and `{ngrams[0]}` {kwargs[ngrams[0]]} cannot be used together: both count the padding of a batch, and what "
            "keeps it out of one changes the other. Leave one of them out."
        )
    try:
        GenerationConfig(**kwargs)
    except (TypeError, ValueError) as error:
        raise ConsistencyError(f"`generation_kwargs` {kwargs} cannot be used: {one_line(error)}") from None


def check_cache(cache_implementation: str | None) -> None:
    """Raises [`ConsistencyError`] for a key/value cache that transformers does not have."""
    try:
        GenerationConfig(cache_implementation=cache_implementation)
    except ValueError as error:
        raise ConsistencyError(f"`cache_implementation` {cache_implementation!r}: {one_line(error)}") from None
