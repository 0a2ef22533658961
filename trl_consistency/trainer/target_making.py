"""The targets of a trainer: the reference policy's own answers to the clean prompts."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from accelerate.logging import get_logger
from datasets import Dataset
from transformers import GenerationConfig, PreTrainedModel

from ..data.collators import PairCollator
from ..data.pairs import AnyDataset
from ..data.prepare import needs_targets
from ..data.target_cache import TargetCache, fingerprint
from ..data.targets import TargetTable, generate_targets
from ..data.thinking import empty_thought
from ..errors import ConsistencyError
from .upstream import get_config_model_id, unwrap_model_for_generation, use_adapter
from .vllm_engine import VLLMEngine


if TYPE_CHECKING:
    from .consistency_config import ConsistencyConfig


logger = get_logger(__name__)

# Under `output_dir`; pushing to the Hub leaves out what begins with an underscore, and targets are training data.
TARGET_CACHE = "_targets"


def adapter_changes_base(peft_config: Any) -> bool:
    """
    Whether the initial policy is more than the model with the adapter off: the adapter's initialisation takes its part out
    of the base weights, so that only both together are the initial policy, or the base model's biases train along.
    """
    init = str(getattr(peft_config, "init_lora_weights", True)).lower()
    trains_biases = getattr(peft_config, "bias", "none") != "none"
    return trains_biases or init.startswith(("pissa", "olora", "corda", "loftq"))


class TargetsMixin:
    """
    What a [`~transformers.Trainer`] needs to let the reference policy answer the clean prompts of its data sets.

    The trainer sets `targets`, `_peft_config` and `_target_sources` (the prepared data sets that may lack completions,
    the training pairs first).
    """

    targets: TargetTable
    args: "ConsistencyConfig"
    data_collator: PairCollator
    _peft_config: Any
    _target_sources: list[AnyDataset]
    # Of the trainer that this is mixed into
    accelerator: Any
    model: Any
    model_wrapped: Any
    processing_class: Any
    state: Any
    is_in_train: bool
    train_dataset: Any
    _tokenizer: Any

    def generate_targets(self) -> None:
        """
        Has the reference policy answer the clean prompts of rows without a completion, into `self.targets`.

        [`train`] and [`evaluate`] do this by themselves; it is for those who want the targets alone.
        """
        self._generate_missing_targets(self._target_sources)

    def dataset_with_targets(self) -> Dataset:
        """
        The training pairs with their targets.

        Returns:
            [`~datasets.Dataset`]: The pairs as they were given, with the columns `completion` (text) and
            `completion_ids` (token ids).
        """

        def add_target(row: dict[str, Any]) -> dict[str, Any]:
            completion_ids = row.get("completion_ids") or self.targets[row["clean_ids"]]
            completion = self._tokenizer.decode(completion_ids, skip_special_tokens=True)
            return {"completion": completion, "completion_ids": completion_ids}

        dataset = self.train_dataset.map(add_target, desc="Adding targets", load_from_cache_file=False)
        return dataset.remove_columns(["clean_ids", "perturbed_ids", "length"])

    def _generate_missing_targets(self, datasets: Iterable[AnyDataset]) -> None:
        if not self.args.needs_completions:
            return
        prompts = self.targets.missing(
            prompt_ids for dataset in datasets if needs_targets(dataset) for prompt_ids in dataset["clean_ids"]
        )
        if not prompts:
            return
        with self._reference_policy() as model, self._engine(model) as engine:
            self._answer(model, prompts, self.targets, self._target_cache(model), engine)

    def regenerate_targets(self, policy: str | None = None) -> str:
        """
        Has the current policy answer the clean prompts of the pairs, for the epochs to come.

        Args:
            policy (`str`, *optional*):
                Fingerprint of the policy whose answers are wanted. If it is not the current one, they must be cached.

        Returns:
            `str`: Fingerprint of the policy whose answers they are.
        """
        current = TargetTable()
        with self._evaluating() as model:
            now = fingerprint(model.named_parameters())
            made_by = policy or now
            cache = TargetCache(Path(self.args.output_dir) / TARGET_CACHE / made_by, {"weights": made_by})
            self._answer(
                model if made_by == now else None,
                current.missing(self._target_sources[0]["clean_ids"]),
                current,
                cache,
            )
        self.data_collator.current_targets = current
        return made_by

    def _answer(
        self,
        model: PreTrainedModel | None,
        prompts: list[list[int]],
        table: TargetTable,
        cache: TargetCache,
        engine: VLLMEngine | None = None,
    ) -> None:
        config = self._generation_config()
        show_progress = self.accelerator.is_main_process and not self.args.disable_tqdm
        with nullcontext() if engine else self._autocast():
            completions = generate_targets(
                model,
                prompts,
                config,
                self.args.target_batch_size,
                self.args.seed,
                show_progress,
                cache,
                engine=engine,
            )
        unended = sum(completion_ids[-1] not in config.eos_token_id for completion_ids in completions)
        if unended:
            logger.warning(
                f"{unended} of {len(completions)} targets reached `max_completion_length={config.max_new_tokens}` "
                "without an end-of-turn token; they are used as they are. Raise it to avoid this."
            )
        if not self.args.keep_thinking:
            opening, closing = self.args.thinking_markers
            completions = [empty_thought(ids, self._tokenizer, (opening, closing)) for ids in completions]
            unanswered = completions.count([])
            if unanswered:
                logger.warning(
                    f"{unanswered} of {len(completions)} targets did not come to the end of their thinking. With "
                    "`keep_thinking=False` nothing is left of them, and their rows train nothing. Raise "
                    "`max_completion_length` to avoid this."
                )
        for prompt_ids, completion_ids in zip(prompts, completions, strict=True):
            table[prompt_ids] = completion_ids

    @contextmanager
    def _engine(self, model: PreTrainedModel) -> Iterator[VLLMEngine | None]:
        """What answers in the model's place, if anything; its memory is given back at the end."""
        if not self.args.use_vllm:
            yield None
            return
        engine = VLLMEngine(model, self.accelerator, self.processing_class, self.args, self._generation_config())
        try:
            yield engine
        finally:
            engine.close()

    @contextmanager
    def _reference_policy(self) -> Iterator[PreTrainedModel]:
        """The policy as it was when training began, unwrapped and ready to generate."""
        has_begun = self.is_in_train or self.state.global_step > 0
        adapter_off = self._peft_config is not None and not adapter_changes_base(self._peft_config)
        if has_begun and not adapter_off:
            raise ConsistencyError(
                "Targets must come from the model as it was before training, and its weights have changed since. Pass "
                "this data set as `eval_dataset` when the trainer is made, or give it a `completion` column."
            )
        with self._evaluating() as model, use_adapter(model, None) if adapter_off else nullcontext():
            yield model

    @contextmanager
    def _evaluating(self) -> Iterator[PreTrainedModel]:
        """The model unwrapped and without dropout, ready to generate."""
        with unwrap_model_for_generation(
            self.model_wrapped, self.accelerator, gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs
        ) as model:
            was_training = model.training
            model.eval()
            try:
                yield model
            finally:
                model.train(was_training)

    def _target_cache(self, model: PreTrainedModel) -> TargetCache:
        """The cache of the reference's targets; `model` is what generates them."""
        # The adapter in training is no part of the reference; one that came with the model is.
        weights = (
            (name, parameter)
            for name, parameter in model.named_parameters()
            if self._peft_config is None or not parameter.requires_grad
        )
        identity = {
            "name": get_config_model_id(model.config),
            "revision": getattr(model.config, "_commit_hash", None),
            "weights": fingerprint(weights),
        }
        # A folder that the user names holds one model's targets; by default each model gets a folder of its own.
        own = Path(self.args.output_dir) / TARGET_CACHE / identity["weights"]
        directory = self.args.target_cache_dir or own
        with self.accelerator.main_process_first():
            return TargetCache(directory, identity)

    def _generation_config(self) -> GenerationConfig:
        args = self.args
        eos_token_ids = self.model.generation_config.eos_token_id
        eos_token_ids = [eos_token_ids] if isinstance(eos_token_ids, int) else list(eos_token_ids or [])
        if self._tokenizer.eos_token_id is not None and self._tokenizer.eos_token_id not in eos_token_ids:
            eos_token_ids.append(self._tokenizer.eos_token_id)
        sampling = {"temperature": args.temperature, "top_p": args.top_p, "top_k": args.top_k, "min_p": args.min_p}
        options = {
            "max_new_tokens": args.max_completion_length,
            "pad_token_id": self._tokenizer.pad_token_id,
            "bos_token_id": self._tokenizer.bos_token_id,
            "eos_token_id": eos_token_ids,
            "repetition_penalty": args.repetition_penalty,
            "cache_implementation": args.cache_implementation,
            **({"do_sample": True, **sampling} if args.temperature > 0 else {"do_sample": False}),
            # With vLLM they are vLLM's, not transformers'.
            **({} if args.use_vllm else cast(dict[str, Any], args.generation_kwargs or {})),
        }
        return GenerationConfig(**options, disable_compile=True)

    def _autocast(self) -> AbstractContextManager:
        dtype = torch.bfloat16 if self.args.bf16 else torch.float16 if self.args.fp16 else None
        return nullcontext() if dtype is None else torch.autocast(self.accelerator.device.type, dtype=dtype)
