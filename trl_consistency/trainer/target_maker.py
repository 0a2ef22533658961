"""Generates a trainer's targets: the reference policy's answers to the clean prompts."""

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset, IterableDataset
from transformers import GenerationConfig, PreTrainedModel

from ..data.eval_sets import named
from ..data.pairs import AnyDataset
from ..data.prepare import needs_targets, variables_of, with_own_columns
from ..data.rendering import continuation
from ..data.reply_header import header_length
from ..data.target_table import TargetTable
from ..data.thinking import empty_thought, has_special_markers, other_thought, warnings_of_markers, without_end
from ..errors import ConsistencyError
from ..generation.answer_cache import TargetCache, fingerprint
from ..generation.answer_engine import server_of_one
from ..generation.model_identity import files_now, identity_digest, model_identity, model_tensors
from ..generation.options import end_tokens, evaluating
from ..generation.targets import Engine, generate_targets
from ..generation.vllm_engine import TargetEngine
from ..log import get_logger
from ..models.adapter_checks import check_adapter_of_reference
from ..models.adapter_state import switched_off
from ..passes.reference import adapter_changes_base
from ..upstream import DistributedBackend, get_config_model_id, unwrap_model_for_generation
from .run.checks import check_weights_unchanged
from .run.own_optimizer import take_evaluated_weights


logger = get_logger(__name__)

# Under `output_dir`. Targets are training data, and names that begin with an underscore are not pushed to the Hub.
TARGET_CACHE = "_targets"

# For a server to come up, and to answer a batch
SERVER_SECONDS = 240.0

# Loading options that do not change which files of a model's folder are loaded.
PLAIN_LOADING = {
    *("attn_implementation", "device_map", "dtype", "quantization_config", "revision", "trust_remote_code"),
    *("use_cache", "use_kernels", "use_safetensors"),
}


class TargetMaker:
    """
    Generates the reference policy's answers to the clean prompts of a trainer's data sets. `loaded_by_name` says
    whether the model's weights are exactly those in the files under its name.
    """

    def __init__(self, trainer: Any, loaded_by_name: bool):
        self.trainer, self.args, self.accelerator = trainer, trainer.args, trainer.accelerator
        self.table = TargetTable()  # by clean prompt
        self.sources: list[AnyDataset] = []  # data sets that may lack completions, the training pairs first
        # Those of them that are trained on: the pairs, and anchors of a data set of their own
        self.trained_on: list[AnyDataset] = []
        self._own_are_answered = False  # so that an evaluation need not look through them
        # The weights in memory are those of the files, as long as nobody replaces the files.
        self._files = files_now(trainer.model, self._revision) if loaded_by_name else None
        self.server: str | None = None  # address of a vLLM server that answers in the model's place

    def note_sources(self) -> None:
        """
        Notes the data sets that may lack targets. Raises [`ConsistencyError`] if they should be regenerated but none are
        needed, or the model cannot generate.
        """
        args, recorded = self.args, self.trainer.recorded_data
        pairs, anchors = recorded["train_dataset"], recorded.get("anchor_dataset")
        # Rows without a target are not known from the mixture with anchors.
        has_anchors = anchors is not None and not isinstance(pairs, IterableDataset)
        self.trained_on = [pairs, *([anchors] if has_anchors else [])]
        self.sources = [*self.trained_on, *named(self.trainer.eval_dataset).values()]
        if args.regenerate_targets_every and not (args.needs_completions and needs_targets(pairs)):
            why = "come with their completions" if args.needs_completions else f"need none for {args.method}"
            raise ConsistencyError(f"`regenerate_targets_every` is set, but the pairs {why}. Leave it out.")
        if args.regenerate_targets_every and DistributedBackend(self.accelerator).is_fsdp:
            raise ConsistencyError(
                "`regenerate_targets_every` has the model in training answer, which it cannot where FSDP shards it. Leave it "
                "out, or use DDP or DeepSpeed."
            )

    def dataset_with_targets(self) -> Dataset:
        """See [`ConsistencyTrainer.dataset_with_targets`]."""
        pairs = self.trainer.recorded_data["train_dataset"]  # without the anchors that are trained on with them
        if isinstance(pairs, IterableDataset):
            raise ConsistencyError(
                "`train_dataset` is streamed, and has its completions already. For a data set with targets, load it without streaming."
            )
        if needs_targets(pairs) and not self.args.needs_completions:
            raise ConsistencyError(
                f"`method` {self.args.method} trains without answers, so its pairs have no targets. Set `method: bct`."
            )
        tokenizer, variables = self.trainer._tokenizer, self.args.chat_template_kwargs or {}

        def add_target(row: dict[str, Any]) -> dict[str, Any]:
            completion_ids = row.get("completion_ids") or self.table[row["clean_ids"]]
            said = completion_ids[header_length(self.trainer.processing_class, completion_ids) :]
            # Without its markers, a thought would be a part of the answer.
            if is_marked := has_special_markers(said, tokenizer, self.args.thinking_markers):
                said = without_end(said, tokenizer)
            completion = tokenizer.decode(said, skip_special_tokens=not is_marked)
            if isinstance(row["clean_prompt"], str):
                completion = continuation(tokenizer, row["clean_ids"], said, not is_marked, completion)
            target = {"completion": completion, "completion_ids": completion_ids}
            # The answers are to prompts that were rendered with these. As text, since Arrow would mix rows' keys.
            if variables:
                target["chat_template_kwargs"] = json.dumps(variables_of(row, variables), ensure_ascii=False)
            return target

        dataset = pairs.map(add_target, desc="Adding targets", load_from_cache_file=False)
        answered = dataset.filter(bool, input_columns="completion_ids", load_from_cache_file=False)
        if left_out := len(dataset) - len(answered):
            logger.warning(
                f"{left_out} of {len(dataset)} pairs are left out: their targets are empty, since the model did not finish its "
                "thinking (`keep_thinking=False`). Raise `max_completion_length` to have them."
            )
        return cast(Dataset, with_own_columns(answered))

    def generate(self, datasets: Sequence[AnyDataset]) -> None:
        """
        Generates the missing completions with the reference policy, if the objectives need completions. Each data set has batches of
        its own. Those that are trained on come first, then all of the trainer's evaluation sets, if one of them is wanted or another
        set has prompts of them: sampled targets depend on the other prompts of a batch.
        """
        if not self.args.needs_completions:
            return
        own = [] if self._own_are_answered else [of for of in self.trained_on if needs_targets(of)]
        wanted = [dataset for dataset in datasets if needs_targets(dataset) and not any(dataset is of for of in own)]
        evaluated = [of for of in self.sources[len(self.trained_on) :] if needs_targets(of)]
        others = [dataset for dataset in wanted if not any(dataset is of for of in evaluated)]
        if len(others) < len(wanted) or self._share_prompts(evaluated, others):
            wanted = evaluated + others
        if any(dataset is of for dataset in datasets for of in own) or self._share_prompts(own, wanted):
            wanted, self._own_are_answered = own + wanted, True
        with ExitStack() as stack:
            model = engine = None
            for dataset in wanted:
                prompts = self.table.missing(dataset["clean_ids"])
                if prompts and model is None:
                    self.check_can_generate()
                    model = stack.enter_context(self._reference_policy())
                    engine = stack.enter_context(self._engine(model))
                if prompts and model is not None:
                    self._answer(model, prompts, self.table, self._cache(model), engine)

    def _share_prompts(self, own: list[AnyDataset], others: list[AnyDataset]) -> bool:
        keys = (
            {TargetTable.key(prompt_ids) for dataset in others for prompt_ids in dataset["clean_ids"]} if own else ()
        )
        return any(TargetTable.key(prompt_ids) in keys for dataset in own for prompt_ids in dataset["clean_ids"])

    def check_can_generate(self) -> None:
        """Raises [`ConsistencyError`] if the model must generate the targets and cannot."""
        has_engine = self.args.use_vllm or self.server is not None
        if DistributedBackend(self.accelerator).is_fsdp and not has_engine:
            raise ConsistencyError(
                "Targets cannot be generated by a model that FSDP shards. Set `use_vllm: true`, name a vLLM server (`--engine "
                "ADDRESS`), make them beforehand with `trl-consistency targets`, or use DDP or DeepSpeed."
            )

    def regenerate(self, policy: str | None = None) -> str:
        """
        Replaces the pairs' targets with the current policy's answers to the clean prompts, or with the cached ones of
        the policy with this fingerprint. Returns the fingerprint of the policy that answered.
        """
        current = TargetTable()
        take_evaluated_weights(self.trainer.optimizer)
        with self._evaluating() as model:
            now = fingerprint(model_tensors(model))
            made_by = policy or now
            cache = TargetCache(Path(self.args.output_dir) / TARGET_CACHE / made_by, {"weights": made_by})
            prompts = current.missing(self.sources[0]["clean_ids"])
            self._answer(model if made_by == now else None, prompts, current, cache)
        self.trainer.data_collator.current_targets = current
        return made_by

    def _answer(
        self,
        model: PreTrainedModel | None,
        prompts: list[list[int]],
        table: TargetTable,
        cache: TargetCache,
        engine: Engine | None = None,
    ) -> None:
        config = self.generation_config()
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
        empty = sum(all(token in config.eos_token_id for token in ids) for ids in completions)
        if empty:
            logger.warning(
                f"{empty} of {len(completions)} targets are empty: the model ends its turn at once. A chat model does so "
                "where prompts are text, which is not put into its chat template: give chat messages then."
            )
        if not self.args.keep_thinking:
            (opening, closing), tokenizer = self.args.thinking_markers, self.trainer._tokenizer
            completions = [
                empty_thought(prompt_ids, ids, tokenizer, (opening, closing))
                for prompt_ids, ids in zip(prompts, completions, strict=True)
            ]
            others = (other_thought(tokenizer.decode(ids), (opening, closing)) for ids in completions)
            for warning in warnings_of_markers(others, "targets", "`keep_thinking: false` leaves in"):
                logger.warning(warning)
            unfinished = completions.count([])
            if completions and unfinished == len(completions):
                raise ConsistencyError(
                    f"None of {unfinished} targets finished its thinking, so that with `keep_thinking=False` nothing is left to train "
                    "on. Raise `max_completion_length`."
                )
            if unfinished:
                logger.warning(
                    f"{unfinished} of {len(completions)} targets did not finish their thinking. With "
                    "`keep_thinking=False` they are empty, and their rows have no answer to train on. Raise "
                    "`max_completion_length` to avoid this."
                )
        truncated = sum(ids[-1] not in config.eos_token_id for ids in completions if ids)
        if truncated:
            logger.warning(
                f"{truncated} of {len(completions)} targets reached `max_completion_length={config.max_new_tokens}` "
                "without an end-of-turn token; they are used as they are. Raise it to avoid this."
            )
        for prompt_ids, completion_ids in zip(prompts, completions, strict=True):
            table[prompt_ids] = completion_ids

    @contextmanager
    def _engine(self, model: PreTrainedModel) -> Iterator[Engine | None]:
        """Yields the vLLM engine or server, or None if the model answers, and frees an engine's memory at the end."""
        if self.server is not None:
            name = get_config_model_id(model.config)
            yield server_of_one(self.server, name, SERVER_SECONDS, self.generation_config(), model.config)
            return
        if not self.args.use_vllm:
            yield None
            return
        engine = TargetEngine(
            model, self.accelerator, self.trainer.processing_class, self.args, self.generation_config()
        )
        try:
            yield engine
        finally:
            engine.close()

    @contextmanager
    def _reference_policy(self) -> Iterator[PreTrainedModel]:
        """Yields the initial policy, unwrapped and ready to generate."""
        has_begun = self.trainer.is_in_train or self.trainer.state.global_step > 0
        adapter_off = self.trainer._adapter_off
        if has_begun and not adapter_off:
            raise ConsistencyError(
                "Targets must come from the model as it was before training, and its weights have changed since. Pass "
                "this data set as `eval_dataset` when the trainer is made, or give it a `completion` column."
            )
        if not has_begun:
            check_weights_unchanged(self.trainer)
        if not adapter_off:
            check_adapter_of_reference(self.trainer.model)
        with self._evaluating() as model, switched_off(model) if adapter_off else nullcontext():
            yield model

    @contextmanager
    def _evaluating(self) -> Iterator[PreTrainedModel]:
        """Yields the model, unwrapped, without dropout and ready to generate."""
        with unwrap_model_for_generation(
            self.trainer.model_wrapped,
            self.accelerator,
            gradient_checkpointing_kwargs=self.args.gradient_checkpointing_kwargs,
        ) as model:
            is_fsdp = DistributedBackend(self.accelerator).is_fsdp  # The model may be too large for one device.
            if model.device.type != self.accelerator.device.type and not is_fsdp:
                model.to(self.accelerator.device)  # DeepSpeed moves it only when training begins.
            with evaluating(model):
                yield model

    @property
    def _revision(self) -> str:
        return (self.args.model_init_kwargs or {}).get("revision") or "main"

    def _cache(self, model: PreTrainedModel) -> TargetCache:
        """Returns the cache of the reference's targets, which `model` generates."""
        changed = self.trainer._peft_config is not None and adapter_changes_base(self.trainer._peft_config)
        # The adapter in training is not part of the reference. An adapter that came with the model is.
        identity = model_identity(
            model,
            get_config_model_id(model.config),
            as_loaded=not changed and self._files == files_now(model, self._revision),
            revision=self._revision,
            adapter_off=self.trainer._peft_config is not None,
        )
        dtype = self._autocast_dtype
        identity["autocast"] = dtype and str(dtype).removeprefix("torch.")
        # `target_cache_dir` holds one model's targets. By default, each model gets its own folder.
        own = Path(self.args.output_dir) / TARGET_CACHE / identity_digest(identity)
        directory = self.args.target_cache_dir or own
        with self.accelerator.main_process_first():
            return TargetCache(directory, identity)

    def generation_config(self) -> GenerationConfig:
        """Returns the options for generating targets."""
        args, tokenizer = self.args, self.trainer._tokenizer
        sampling = {"temperature": args.temperature, "top_p": args.top_p, "top_k": args.top_k, "min_p": args.min_p}
        options = {
            "max_new_tokens": args.max_completion_length,
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": end_tokens(self.trainer.model, tokenizer),
            "repetition_penalty": args.repetition_penalty,
            "cache_implementation": args.cache_implementation,
            **({"do_sample": True, **sampling} if args.temperature > 0 else {"do_sample": False}),
            # With `use_vllm`, `generation_kwargs` are options of vLLM.
            **({} if args.use_vllm else cast(dict[str, Any], args.generation_kwargs or {})),
        }
        if isinstance(options["eos_token_id"], int):  # from `generation_kwargs`
            options["eos_token_id"] = [options["eos_token_id"]]
        return GenerationConfig(**options, disable_compile=True)

    @property
    def _autocast_dtype(self) -> torch.dtype | None:
        """The precision of the run, which the environment decides too (`accelerate launch --mixed_precision`)."""
        return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.accelerator.mixed_precision)

    def _autocast(self) -> AbstractContextManager:
        dtype = self._autocast_dtype
        return nullcontext() if dtype is None else torch.autocast(self.accelerator.device.type, dtype=dtype)
