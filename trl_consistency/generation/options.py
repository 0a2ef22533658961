"""Makes the options of a run decide what is sampled, and not the model's own `generation_config`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from peft import PeftModel
from torch import Tensor
from transformers import GenerationConfig

from ..data.rendering import ProcessingClass, Prompt, get_tokenizer, written_end
from ..log import get_logger
from ..upstream import has_own_code


logger = get_logger(__name__)

# A chat model may end its turn with another token than the tokenizer's, which only its file names.
SPECIAL_TOKENS = ("bos_token_id", "decoder_start_token_id", "eos_token_id", "pad_token_id")
# Most chat models set some of these. They have no effect without sampling.
_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p")
_READS_PADDING: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
# Every run limits the new tokens itself.
_LENGTHS = ("max_length", "max_new_tokens")


@contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Within it, a model is in evaluation mode. Its previous mode, and that of each of its parts, is restored afterwards."""
    was_training, before = model.training, [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
        for part, mode in before:
            part.training = mode


@contextmanager
def own_options(model: Any, config: GenerationConfig | None = None) -> Iterator[None]:
    """
    Within it, `model.generate` uses neutral values for options that the run does not set.

    Otherwise it would take them from the model's `generation_config.json`, and for example a repetition penalty would
    change answers without being set. The special tokens are kept. Ignored values are logged, unless the run's own
    options, `config`, set them.
    """
    # PEFT and TRL also set it on the outer model while they generate.
    owners = [model, *(module for module in model.modules() if "generation_config" in vars(module))]
    before = [(module, vars(module).get("generation_config")) for module in dict.fromkeys(owners)]
    brought = next((found for _, found in before if found is not None), None)
    if brought is None:
        yield
        return
    left_out = _left_out(brought, config)
    if left_out:
        logger.warning_once(
            f"The model's generation_config is ignored: {', '.join(left_out)}. The options of the run alone decide "
            "what is sampled."
        )
    neutral = GenerationConfig(**{name: getattr(brought, name, None) for name in SPECIAL_TOKENS})
    if config is not None and config.do_sample:
        neutral.top_k = 0  # the default of transformers keeps only 50 tokens
    for module, found in before:
        if found is not None:
            module.generation_config = neutral
    try:
        yield
    finally:
        for module, found in before:
            if found is not None:
                module.generation_config = found
            elif "generation_config" in vars(module):
                del module.generation_config


def _left_out(brought: GenerationConfig, config: GenerationConfig | None) -> list[str]:
    """Returns the keys and values of a model's generation config that the options of a run do not set."""
    ignored = {*SPECIAL_TOKENS, *_LENGTHS, "transformers_version"}
    if config is not None and not config.do_sample:
        ignored.update(_OF_SAMPLING)
    standard = brought._get_default_generation_params()
    return [
        f"`{name}: {value}`"
        for name, value in sorted(brought.to_diff_dict().items())
        if name not in ignored
        and not name.startswith("_")
        and (value or standard.get(name))  # options that are off are not logged
        and value != standard.get(name)
        and (config is None or getattr(config, name, None) is None)
    ]


def without_router_loss(model: Any) -> dict[str, bool]:
    """
    Returns arguments for a call of a mixture of experts that has no use for the load-balancing loss. TRL sets
    `output_router_logits` in its config for it, and it cannot be computed token by token.
    """
    is_asked = getattr(model.config.get_text_config(), "output_router_logits", False)
    return {"output_router_logits": False} if is_asked else {}


def reads_padding(model: Any) -> bool:
    """
    Whether padding on the left changes what a model says. Some architectures, such as RWKV, take no mask; this is tried once
    for each model. And PEFT drops the position ids of a model with a learned prompt.
    """
    if uses_learned_prompt(model):
        return True
    if model not in _READS_PADDING:
        _READS_PADDING[model] = _changes_with_padding(model)
        if _READS_PADDING[model]:
            logger.warning(
                "The model reads padding as it reads text, so it answers one prompt at a time, which is slow."
            )
    return _READS_PADDING[model]


def uses_learned_prompt(model: Any) -> bool:
    """Whether a learned prompt of PEFT stands before the text."""
    is_learned = isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning
    return is_learned and not model._adapters_disabled


@torch.no_grad()
def _changes_with_padding(model: Any) -> bool:
    """Tries whether a few tokens have other logits after padding, as they have if a recurrent layer begins with the padding."""
    found = []
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    is_own = has_own_code(base)  # It may give its forward other inputs than those here, such as no position ids.
    try:
        # Rounding differs where padding changes the order of sums. Logits may be in float32 where the layers are not.
        rounds = any(of.dtype != torch.float32 for of in model.parameters())
        run = model
        if not rounds:  # without the mixed precision that accelerate may have put into the model's forward
            run = partial(type(base).forward, base)
        ids = torch.arange(1, 9, device=model.device)[None] % model.config.get_text_config().vocab_size
        for padding in (0, 5):
            padded = F.pad(ids, (padding, 0))
            mask = F.pad(torch.ones_like(ids), (padding, 0))
            positions = (mask.cumsum(-1) - 1).clamp(min=0)
            with evaluating(model):
                if is_own:
                    logits = _first_logits(model, padded, mask)
                else:
                    logits = run(input_ids=padded, attention_mask=mask, position_ids=positions, use_cache=False).logits
            found.append(logits[0, -1].float())
    except Exception:  # an unknown architecture may raise anything, and will do so again where it is used
        return False
    alone, after = found
    rounds |= torch.is_autocast_enabled(alone.device.type) or (is_own and "forward" in vars(base))
    return bool((after - alone).norm() > (5e-2 if rounds else 1e-2) * alone.norm())


def _first_logits(model: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Returns the logits of the first token that `model.generate` would write, (B, 1, V)."""
    config = GenerationConfig(
        max_new_tokens=1,
        do_sample=False,
        use_cache=False,
        pad_token_id=0,
        output_logits=True,
        return_dict_in_generate=True,
    )
    with own_options(model, config):
        output = model.generate(input_ids=input_ids, attention_mask=attention_mask, generation_config=config)
    return output.logits[0][:, None]


def left_padded(rows: Sequence[Sequence[int]], pad_token_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns rows of token ids as a batch that is padded on the left, and its mask, both (B, T)."""
    width = max(map(len, rows))
    ids = [[pad_token_id] * (width - len(row)) + [*row] for row in rows]
    mask = [[0] * (width - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def penalized(input_ids: Tensor, attention_mask: Tensor, config: GenerationConfig) -> Tensor:
    """
    Returns a left-padded batch for generation with `config`. Some options penalize, or forbid, every token that occurs in a row, and
    they count the padding. It may be the token that ends an answer. With such an option, each row's own tokens are repeated in place
    of its padding. The mask still hides them from the model.
    """
    penalties = config.repetition_penalty, config.encoder_repetition_penalty
    forbidden = (
        config.no_repeat_ngram_size,
        config.encoder_no_repeat_ngram_size,
    )  # longer ones never hold padding alone
    if all(of in (None, 1) for of in penalties) and 1 not in forbidden:
        return input_ids
    lengths = attention_mask.sum(1, keepdim=True)
    start = input_ids.shape[1] - lengths
    places = torch.arange(input_ids.shape[1], device=input_ids.device)
    return input_ids.gather(1, start + (places - start) % lengths)


def end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """Returns the tokens that end an answer: the model's, and the tokenizer's, which may differ."""
    ends = model.generation_config.eos_token_id
    ends = [ends] if isinstance(ends, int) else list(ends or [])
    own = get_tokenizer(tokenizer).eos_token_id
    return ends if own is None or own in ends else [*ends, own]


def warning_of_end(
    model: Any, processing_class: ProcessingClass, prompt: Prompt, chat_template_kwargs: dict[str, Any] | None = None
) -> str | None:
    """
    Returns a warning if what the chat template writes after an answer to a chat ends none, as in base models: their template ends a turn with
    `<|im_end|>`, and their files name `<|endoftext|>` alone.
    """
    if isinstance(prompt, str):
        return None
    written = ""
    with suppress(Exception):  # rendering the rows says why
        written = written_end(processing_class, prompt, None, chat_template_kwargs)
    tokenizer, ends = get_tokenizer(processing_class), end_tokens(model, processing_class)
    ids = tokenizer(text=written, add_special_tokens=False)["input_ids"] if written else []
    if not ids or not {*ids}.isdisjoint(ends):
        return None
    names = " and ".join(map(str, tokenizer.convert_ids_to_tokens(ends))) or "no token"
    return (
        f"The chat template writes {written!r} after an answer, where this model does not stop: {names} ends its answers, so they go on with "
        "further turns. Set the tokenizer's `eos_token` to the token that ends a turn, in tokenizer_config.json or in the script."
    )
