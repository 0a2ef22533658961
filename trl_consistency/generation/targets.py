"""Generates targets: the reference policy's own answers to the clean prompts, as the sampled token ids."""

import hashlib
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from tqdm.auto import tqdm
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel

from ..config.device import own_randomness
from ..errors import ConsistencyError
from ..finite import NaNWatch, explained_sampling
from .answer_cache import TargetCache, generation_options
from .options import left_padded, own_options, penalized, reads_padding, uses_learned_prompt, without_router_loss


class Engine(Protocol):
    """
    Answers prompts in place of `model.generate`. `options` holds what can change answers beside the generation config.
    """

    options: dict[str, Any]

    def start(self) -> None:
        """Prepares the engine. Called on all processes, and only if there are prompts to answer."""

    def __call__(self, prompts: list[list[int]], seed: int) -> list[list[int]]:
        """Returns the completion ids of prompts (token ids), sampled with `seed`."""
        ...


def generate_targets(
    model: PreTrainedModel | None,
    prompts: list[list[int]],
    generation_config: GenerationConfig,
    batch_size: int,
    seed: int,
    progress: bool = True,
    cache: TargetCache | None = None,
    desc: str = "Generating targets",
    engine: Engine | None = None,
) -> list[list[int]]:
    """
    Answers prompts (token ids) in length-sorted batches, which are distributed over the processes. Returns the sampled
    token ids in the order of `prompts`. Each answer ends with an end-of-turn token unless `max_new_tokens` was reached
    first.

    The batches do not depend on the number of processes, and each is sampled with its own seed. The answers therefore
    depend neither on the number of processes nor on earlier sampling. The caller's random state is kept.

    The unwrapped `model` may be None if the `cache`, to which each finished batch is written, holds all answers.
    `generation_config` must set `pad_token_id` and `eos_token_id`; values that it does not set are neutral, not the
    model's own. Raises [`ConsistencyError`] for an encoder-decoder, whose output does not begin with the prompt.
    """
    state = PartialState()
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ConsistencyError(f"`{type(model).__name__}` is an encoder-decoder. Use a decoder-only model.")
    if cache:
        if model is not None:
            cache.check_model(model)
        options = {**generation_options(generation_config), **(engine.options if engine else {})}
        cache.open(prompts, {**options, "seed": seed, "batch_size": batch_size})
    order = sorted(range(len(prompts)), key=lambda index: (-len(prompts[index]), index))
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    answers: list[tuple[int, list[int]]] = []
    mine = list(range(state.process_index, len(batches), state.num_processes))
    with (
        tqdm(total=len(prompts), desc=desc, unit="prompt", disable=not progress) as bar,
        own_randomness(None if model is None else model.device),
        nullcontext() if model is None or engine else own_options(model, generation_config),
    ):
        if engine and any(gather_object([any(not (cache and cache.has(number)) for number in mine)])):
            engine.start()
        for number in mine:
            batch = batches[number]
            completions = cache.get(number, len(batch)) if cache else None
            if completions is None:
                if model is None:
                    where = cache.path if cache else "the cache"
                    raise ConsistencyError(
                        f"Targets that this run needs are no longer in {where}: batch {number}. Start again, and leave that folder as it is."
                    )
                batch_prompts, batch_seed = [prompts[index] for index in batch], seed_of(seed, number)
                if engine:
                    answered = engine(batch_prompts, batch_seed)
                else:
                    torch.manual_seed(batch_seed)
                    answered = _generate(model, batch_prompts, generation_config)
                completions = [cut_after_end(ids, generation_config.eos_token_id) for ids in answered]
                if cache:
                    cache.put(number, completions)
            answers += zip(batch, completions, strict=True)
            # The other processes have made about as much progress.
            bar.update(min(len(batch) * state.num_processes, len(prompts) - bar.n))
    by_index = dict(gather_object(answers))
    return [by_index[index] for index in range(len(prompts))]


def seed_of(seed: int, number: int) -> int:
    """Returns the seed of a batch or a prompt, `number`, of those that `seed` decides."""
    return int.from_bytes(hashlib.blake2b(f"{seed}:{number}".encode(), digest_size=6).digest(), "little")


@torch.no_grad()
def _generate(model: PreTrainedModel, prompts: list[list[int]], config: GenerationConfig) -> list[list[int]]:
    if len(prompts) > 1 and reads_padding(model) and not uses_learned_prompt(model):
        # Not by length: RWKV in transformers mixes up the rows of a batch of single tokens.
        return [_generate(model, [ids], config)[0] for ids in prompts]
    if uses_learned_prompt(model) and len({*map(len, prompts)}) > 1:
        of_length = {length: [ids for ids in prompts if len(ids) == length] for length in {*map(len, prompts)}}
        answers = {length: iter(_generate(model, same, config)) for length, same in sorted(of_length.items())}
        return [next(answers[len(ids)]) for ids in prompts]
    input_ids, attention_mask = left_padded(prompts, config.pad_token_id, model.device)
    watch = NaNWatch()
    # Each process has the whole weights and its own batches, so none may wait for another, as under ZeRO-3.
    with explained_sampling("the model"):
        output = model.generate(
            input_ids=penalized(input_ids, attention_mask, config),
            attention_mask=attention_mask,
            generation_config=config,
            logits_processor=LogitsProcessorList([watch]),
            synced_gpus=False,
            **without_router_loss(model),
        )
    watch.check()
    return output[:, input_ids.shape[1] :].tolist()


def cut_after_end(ids: list[int], eos_token_ids: int | list[int]) -> list[int]:
    """Returns the token ids up to and including the first end-of-turn token, or all if there is none."""
    ends = {eos_token_ids} if isinstance(eos_token_ids, int) else set(eos_token_ids)
    length = next((position + 1 for position, token in enumerate(ids) if token in ends), len(ids))
    return ids[:length]
