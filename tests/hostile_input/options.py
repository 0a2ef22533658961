"""Hostile input: options of evaluations, the model, its adapter and its optimizer."""

from collections.abc import Callable
from typing import Any

import peft
import torch
from peft import (
    AdaLoraConfig,
    AdaptionPromptConfig,
    LoraConfig,
    PrefixTuningConfig,
    PromptTuningConfig,
    TrainableTokensConfig,
    get_peft_model,
)
from transformers import BitsAndBytesConfig

from tests.helpers.models import make_model, make_pairs, make_tokenizer
from tests.hostile_input.room import CHAT, USER, Case, Room


def with_adapter(make: Callable[[], Any]) -> Callable[[Room], Any]:
    return lambda room: room.trainer(peft_config=make())


def own_adapter(room: Room, change: Callable[[Any], Any], **arguments: Any) -> None:
    """A model that comes with an adapter, to which something was done."""
    model = get_peft_model(make_model(), LoraConfig(target_modules=["q_proj"]))
    change(model)
    room.trainer(model=model, processing_class=make_tokenizer(), **arguments)


def optimizer_of_the_base(room: Room) -> None:
    model = make_model()
    optimizers = (torch.optim.SGD(model.parameters(), lr=0.1), None)
    lora = LoraConfig(target_modules=["q_proj"])
    room.trainer(model=model, processing_class=make_tokenizer(), optimizers=optimizers, peft_config=lora).train()


CASES: list[Case] = [
    Case(
        "nothing to evaluate on",
        "Evaluation without evaluation pairs",
        "`eval_strategy` is steps, but there is no `eval_dataset`: give one, or set `eval_strategy: 'no'`.",
        lambda room: room.trainer(options={"eval_strategy": "steps", "eval_steps": 1}),
    ),
    Case(
        "nothing to evaluate at the start",
        "An evaluation before the first step, without evaluation pairs",
        "`eval_on_start` is set, but there is no `eval_dataset`: give one, or leave it out.",
        lambda room: room.trainer(options={"eval_on_start": True}),
    ),
    Case(
        "name of an evaluation set",
        "An evaluation set with a number for a name",
        "`eval_dataset` must have names that are text, got [3].",
        lambda room: room.trainer(eval_dataset={3: make_pairs(2)}),
    ),
    *(
        Case(
            f"{option} {value}",
            f"`{option}: {value}`",
            f"`{option}` must be {words}, got {value!r}.",
            lambda room, option=option, value=value: room.train(**{option: value}),
        )
        for option, value, words in (
            ("pad_to_multiple_of", 0, "at least 1, or None"),
            ("neftune_noise_alpha", -1.0, "above 0, or None"),
            ("logging_steps", -1.0, "at least 0"),
        )
    ),
    Case(
        "misspelt key of a message",
        "A misspelt key of a message",
        "…row 0: `clean_prompt` message 0 has the key `tool_cals`, which would be ignored: did you mean `tool_calls`?",
        lambda room: room.trainer([CHAT | {"clean_prompt": [USER[0] | {"tool_cals": [3]}]}]),
    ),
    Case(
        "do_eval",
        "`do_eval` alone, which evaluates nothing",
        "`do_eval` alone evaluates nothing: set `eval_strategy`, or leave it out.",
        lambda room: room.train(do_eval=True),
    ),
    Case(
        "misspelt order of rows",
        "A misspelt `train_sampling_strategy`, in Python, for which `random` was taken",
        "`train_sampling_strategy` must be 'random', 'sequential', 'group_by_length' or 'batch_rebalance', got 'group_by_lengths'.",
        lambda room: room.trainer(options={"train_sampling_strategy": "group_by_lengths"}),
    ),
    Case(
        "misspelt count of tokens",
        "A misspelt `include_num_input_tokens_seen`, in Python, for which `all` was taken",
        "`include_num_input_tokens_seen` must be 'all', 'non_padding' or 'no', got 'nonpadding'.",
        lambda room: room.trainer(options={"include_num_input_tokens_seen": "nonpadding"}),
    ),
    Case(
        "unknown cache",
        "A misspelt `cache_implementation`, found out by the first answer",
        "`cache_implementation` 'statik': Invalid `cache_implementation` (statik). Choose one of: …",
        lambda room: room.train(cache_implementation="statik", command="on-policy-consistency"),
    ),
    Case(
        "checkpointed prefix",
        "Prefix tuning with gradient checkpointing",
        "Prefix tuning puts its prompt into the key/value cache, which `gradient_checkpointing` (TRL's default) turns off. Set "
        "`gradient_checkpointing: false`.",
        lambda room: room.trainer(
            options={"gradient_checkpointing": True},
            peft_config=PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2),
        ),
    ),
    Case(
        "no split to evaluate on at the start",
        "The same in a recipe",
        "`dataset_test_split` is `test`, but the data set has only: train. …",
        lambda room: room.train(eval_on_start=True),
    ),
    Case(
        "name on the Hub",
        "A name on the Hub that cannot be one",
        "`hub_model_id` 'my model!': Repo id must …",
        lambda room: room.train(push_to_hub=True, hub_model_id="my model!"),
    ),
    Case(
        "unknown loading option",
        "A misspelt option for loading the model",
        "`model_init_kwargs` has the unknown key `attn_implementatio`. Did you mean `attn_implementation`?",
        lambda room: room.train(model_init_kwargs={"attn_implementatio": "eager"}),
    ),
    Case(
        "more layers",
        "Loading options that ask for layers which the weights do not have",
        "… asks for 3 layers (`num_hidden_layers`), and the weights have 2. Download or copy both again. (`model_init_kwargs` changes its config: num_hidden_layers.)",
        lambda room: room.trainer(options={"model_init_kwargs": {"num_hidden_layers": 3}}),
    ),
    Case(
        "other weights",
        "Loading options that load other weights, or make some at random",
        "`model_init_kwargs` sets `ignore_mismatched_sizes`, which could make the model differ from its files. …",
        lambda room: room.trainer(options={"model_init_kwargs": {"ignore_mismatched_sizes": True, "vocab_size": 500}}),
    ),
    Case(
        "weights of a variant",
        "Weights of a variant, such as those in model.ema.safetensors",
        "`model_init_kwargs` sets `variant`, which could make the model differ from its files. …",
        lambda room: room.trainer(options={"model_init_kwargs": {"variant": "ema"}}),
    ),
    Case(
        "unknown checkpointing option",
        "A misspelt option of gradient checkpointing",
        "`gradient_checkpointing_kwargs` has the unknown key `reentrant`. Did you mean `use_reentrant`?",
        lambda room: room.train(gradient_checkpointing_kwargs={"reentrant": False}, command="on-policy-consistency"),
    ),
    Case(
        "no anchor",
        "A share of anchors so small that there is none",
        "`anchor_ratio` is 0.01, which makes no anchor for 2 pair(s). Raise it.",
        lambda room: room.trainer(options={"anchor_ratio": 0.01}),
    ),
    Case(
        "one thinking marker",
        "The same marker for the beginning and the end of a thought",
        "`thinking_markers` must be two different texts: what opens a thought and what closes it, got ['<t>', '<t>'].",
        lambda room: room.train(thinking_markers=["<t>", "<t>"]),
    ),
    Case(
        "nothing to evaluate rollouts on",
        "The same, on-policy",
        "`eval_strategy` is epoch, but there is no `eval_dataset`: give one, or set `eval_strategy: 'no'`.",
        lambda room: room.rollouts(options={"eval_strategy": "epoch"}),
    ),
    Case(
        "best model",
        "The best model, without evaluations to find it",
        "`load_best_model_at_end` needs evaluations to tell which is best: set `eval_strategy`.",
        lambda room: room.train(load_best_model_at_end=True),
    ),
    Case(
        "best model of several sets",
        "The best model by the loss, with several evaluation sets that each have a loss",
        "`metric_for_best_model` is the loss, and each evaluation set has one of its own: name one of eval_a_loss, eval_b_loss.",
        lambda room: room.trainer(
            options={"load_best_model_at_end": True, "eval_strategy": "epoch", "save_strategy": "epoch"},
            eval_dataset={"a": make_pairs(2), "b": make_pairs(2)},
        ),
    ),
    Case(
        "best model by nothing",
        "The best model by a metric that the evaluation does not have",
        "The `metric_for_best_model` training argument is set to 'eval_acuracy', which is not found in the evaluation metrics. …",
        lambda room: room.trainer(
            options={"metric_for_best_model": "acuracy", "load_best_model_at_end": True}
            | {"eval_strategy": "epoch", "save_strategy": "epoch"},
            model=make_model(),
            processing_class=make_tokenizer(),
            eval_dataset=make_pairs(2),
        ).train(),
    ),
    Case(
        "adapter after what is compared",
        "An adapter on blocks after those that are compared",
        "Nothing that is compared (`method` ['act'], blocks up to 0) depends on a parameter that is trained. …",
        lambda room: room.trainer(
            options={"method": "act", "layers": [0]},
            model=make_model(),
            processing_class=make_tokenizer(),
            peft_config=LoraConfig(target_modules=["q_proj"], layers_to_transform=[1]),
        ),
    ),
    Case(
        "regeneration after the end",
        "Targets to regenerate after more epochs than there are",
        "`regenerate_targets_every` is 2, and the training takes 1 epoch(s): targets would never be regenerated. …",
        lambda room: room.trainer(
            make_pairs(2, completion=False),
            {"regenerate_targets_every": 2, "num_train_epochs": 1},
            model=make_model(),
            processing_class=make_tokenizer(),
        ).train(),
    ),
    Case(
        "text in place of the schedule's options",
        "Options of the schedule that are no mapping",
        "`lr_scheduler_kwargs` must be a mapping, got 'min_lr=0.1'.",
        lambda room: room.trainer(
            options={"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": "min_lr=0.1"}
        ),
    ),
    Case(
        "number of the schedule as text",
        "A number of the schedule that YAML reads as text",
        "`lr_scheduler_kwargs` sets `min_lr` to the text '1e-6'. YAML takes a number for text if it has an exponent without a dot or a "
        "sign: write 1.0e-6 without quotes.",
        lambda room: room.train(
            'lr_scheduler_kwargs: {"min_lr": 1e-6}\n', lr_scheduler_type="cosine_with_min_lr", learning_rate=0.1
        ),
    ),
    Case(
        "schedule that takes better for worse",
        "A learning rate that falls where a metric rises of which more is better",
        "`lr_scheduler_type` is reduce_lr_on_plateau, in the mode 'min', but of `metric_for_best_model` (consistency/score) a higher "
        "value is better: the learning rate would fall where the model improves. Set `lr_scheduler_kwargs: {mode: max}`.",
        lambda room: room.train(
            lr_scheduler_type="reduce_lr_on_plateau",
            metric_for_best_model="consistency/score",
            eval_strategy="steps",
            eval_steps=1,
        ),
    ),
    Case(
        "seed of no order",
        "A seed of the order of rows, which come in their own",
        "`data_seed` is set, but `train_sampling_strategy: sequential` draws no order. Leave it out.",
        lambda room: room.train(data_seed=3, train_sampling_strategy="sequential"),
    ),
    Case(
        "column of lengths",
        "Your own column of lengths",
        "`length_column_name` is not available in consistency training: the trainer measures the rows itself. Leave it out.",
        lambda room: room.train(length_column_name="words"),
    ),
    Case(
        "optimizer of nothing",
        "An optimizer for a model that then gets an adapter",
        "`optimizers`: the optimizer holds no parameter that is trained, so that nothing would be learned. …",
        optimizer_of_the_base,
    ),
    Case(
        "template variable in quotes",
        "A truth value in quotation marks among the template variables",
        "`chat_template_kwargs` sets `no_think` to the text 'false', which a template takes for true: write false without quotes.",
        lambda room: room.train(chat_template_kwargs={"no_think": "false"}),
    ),
    Case(
        "best model between saves",
        "The best model, with evaluations and saves at different steps",
        "…load_best_model_at_end requires the save and eval strategy to match…",
        lambda room: room.train(load_best_model_at_end=True, eval_strategy="steps", eval_steps=1),
    ),
    Case(
        "unknown end token",
        "An end-of-sequence token that the tokenizer does not have",
        "`eos_token` is '<end>', which is not a token of the tokenizer. Name one that it has, or leave it out.",
        lambda room: room.train(eos_token="<end>"),
    ),
    Case(
        "unknown padding",
        "A padding token that the tokenizer does not have",
        "`pad_token` is '<pad>', which is not a token of the tokenizer. Name one that it has, or leave it out.",
        lambda room: room.trainer(options={"pad_token": "<pad>"}),
    ),
    Case(
        "two precisions",
        "Two precisions at once",
        "At most one of fp16 and bf16 can be True, but not both",
        lambda room: room.train("fp16: true\n", bf16=True),
    ),
    Case(
        "unknown dtype",
        "An unknown precision",
        "`dtype` is float12: it can be auto, bfloat16, float16 or float32.",
        lambda room: room.trainer(options={"model_init_kwargs": {"dtype": "float12"}}),
    ),
    Case(
        "whole weights in float16",
        "Whole weights in float16, in which AdamW cannot train",
        "`dtype` is float16, and whole weights are trained: squares of small gradients are 0 in it, so that AdamW's steps are many times "
        "too large. Load the model in float32 (`dtype: float32`, with `bf16: true` or `fp16: true` to compute in 16 bits).",
        lambda room: room.trainer(options={"model_init_kwargs": {"dtype": "float16"}}),
    ),
    Case(
        "unknown attention",
        "An unknown attention implementation",
        '… cannot be loaded: Specified `attn_implementation="fast"` is not supported. …',
        lambda room: room.train(attn_implementation="fast"),
    ),
    Case(
        "attention without maps",
        "`attct` with an attention that forms no maps",
        "`attct` compares attention maps, which `sdpa` attention never forms. Set `attn_implementation: eager`.",
        lambda room: room.train(method="attct", attn_implementation="sdpa"),
    ),
    Case(
        "attention maps without padding",
        "`attct` on batches without padding",
        "`padding_free` cannot be used with `attct`: it compares attention maps, which have a row for each sequence of a "
        "batch. Leave one of them out.",
        lambda room: room.train(method="attct", padding_free=True),
    ),
    Case(
        "eager attention without padding",
        "Batches without padding, with an attention implementation that takes no lengths",
        "`padding_free` is not possible: `eager` attention takes no lengths of sequences. Set `attn_implementation` to "
        "`sdpa` or `flash_attention_2` if the model has it. Leave it out.",
        lambda room: room.train(padding_free=True, attn_implementation="eager"),
    ),
    Case(
        "multiple of no padding",
        "A length of padding, for batches without it",
        "`pad_to_multiple_of` is set, but with `padding_free` batches have no padding. Leave one of them out.",
        lambda room: room.train(padding_free=True, pad_to_multiple_of=8),
    ),
    Case(
        "packing without a length",
        "Packed pairs, without a maximum length",
        "`packing` needs `max_length`: a packed sequence holds as many pairs as fit into so many tokens. Set it to at least the "
        "length of the longest row.",
        lambda room: room.train(packing=True),
    ),
    Case(
        "packing that cuts",
        "A way of packing that cuts pairs",
        "`packing_strategy='wrapped'` is not available in consistency training: pairs are never cut. Leave it out.",
        lambda room: room.train(packing=True, max_length=512, packing_strategy="wrapped"),
    ),
    Case(
        "packing by length",
        "Packed pairs, with rows drawn by length",
        "`packing` cannot be used with `train_sampling_strategy: group_by_length`, which goes by the lengths of rows: packed "
        "sequences are about equally long. Leave one of them out.",
        lambda room: room.train(packing=True, max_length=512, train_sampling_strategy="group_by_length"),
    ),
    Case(
        "packing with eager attention",
        "Packed pairs, with an attention implementation that cannot keep them apart",
        "`packing` is not possible: `eager` attention takes no lengths of sequences. Set `attn_implementation` to `sdpa` or "
        "`flash_attention_2` if the model has it. Leave it out.",
        lambda room: room.train(packing=True, max_length=512, attn_implementation="eager"),
    ),
    Case(
        "unknown target modules",
        "LoRA on modules that the model does not have",
        "`peft_config` does not fit the model: Target modules {'queries'} not found in the base model. Please check the target modules and try again.",
        lambda room: room.train(use_peft=True, lora_target_modules=["queries"]),
    ),
    Case(
        "dtype by its old name",
        "`torch_dtype` in `model_init_kwargs`, which transformers ignores beside `dtype`",
        "`model_init_kwargs` sets `torch_dtype`, which would be ignored: it is called `dtype` now.",
        lambda room: room.trainer(options={"model_init_kwargs": {"torch_dtype": "bfloat16"}}),
    ),
    Case(
        "dtype given at its default",
        "A dtype as an option, even that by default, and another one in `model_init_kwargs`",
        "`dtype` is float32, and `model_init_kwargs` sets `dtype` to bfloat16: keep one.",
        lambda room: room.train("", "--dtype", "float32", model_init_kwargs={"dtype": "bfloat16"}),
    ),
    Case(
        "dtype given twice",
        "Two dtypes: as an option, and in `model_init_kwargs`",
        "`dtype` is bfloat16, and `model_init_kwargs` sets `dtype` to float16: keep one.",
        lambda room: room.train(dtype="bfloat16", model_init_kwargs={"dtype": "float16"}),
    ),
    Case(
        "rank 0",
        "LoRA of rank 0",
        "`peft_config` is wrong: `r` must be at least 1, got 0.",
        lambda room: room.rollouts(peft_config=LoraConfig(r=0, target_modules="all-linear")),
    ),
    *(
        Case(f"adapter {kind}", f"An adapter {what}", f"`peft_config`{message}", with_adapter(make))
        for kind, what, message, make in (
            (
                "text",
                "that is given only as a name",
                " must be a config of PEFT, such as `LoraConfig`, got `str`.",
                lambda: "lora",
            ),
            (
                "PiSSA",
                "whose initialisation changes the base model by chance or by data (PiSSA with `niter`, CorDA, LoftQ)",
                ": `init_lora_weights` changes the base model itself, …",
                lambda: LoraConfig(target_modules=["q_proj"], init_lora_weights="pissa_niter_4"),
            ),
            (
                "replication",
                "that repeats layers of the base model",
                ": `layer_replication` changes the base model itself, …",
                lambda: LoraConfig(target_modules=["q_proj"], layer_replication=[[0, 2], [0, 2]]),
            ),
            (
                "KaSA",
                "that takes the smallest singular values off the base model (KaSA)",
                ": `kasa_config` changes the base model itself, …",
                lambda: LoraConfig(target_modules=["q_proj"], kasa_config=peft.KasaConfig()),
            ),
            (
                "MonteCLoRA",
                "that needs a term in the loss (MonteCLoRA)",
                " sets `monteclora_config`, for which PEFT needs a term in the loss that no trainer here adds. Leave it out.",
                lambda: LoraConfig(target_modules=["q_proj"], monteclora_config=peft.MontecloraConfig()),
            ),
            (
                "EVA",
                "whose initialisation needs data (EVA, LoRA-GA)",
                " sets `init_lora_weights`, for which PEFT needs prompts or data that no trainer gives it. Leave it out.",
                lambda: LoraConfig(target_modules=["q_proj"], init_lora_weights="eva"),
            ),
            (
                "aLoRA",
                "that begins to act at certain words",
                " sets `alora_invocation_tokens`, for which …",
                lambda: LoraConfig(target_modules=["q_proj"], alora_invocation_tokens=[5]),
            ),
            (
                "AdaLoRA",
                "that needs calls in each step, or task ids (AdaLoRA, Poly, X-LoRA, …)",
                " is of the type ADALORA, which needs more from a trainer than the gradients of a loss. Use LoRA.",
                lambda: AdaLoraConfig(target_modules=["q_proj"], total_step=10),
            ),
            (
                "adaption prompt",
                "whose prompts stand in the attention (Llama-Adapter)",
                " is of the type ADAPTION_PROMPT, which needs more from a trainer than the gradients of a loss. Use LoRA.",
                lambda: AdaptionPromptConfig(adapter_len=4, adapter_layers=1, task_type="CAUSAL_LM"),
            ),
            (
                "dropout",
                "with a dropout above 1",
                " does not fit the model: dropout probability has to be between 0 and 1, but got 1.5",
                lambda: LoraConfig(target_modules=["q_proj"], lora_dropout=1.5),
            ),
        )
    ),
    Case(
        "alpha 0",
        "An adapter that is not active",
        "The gradient was zero in every step though the loss was not, …",
        lambda room: (
            room.monkeypatch.undo(),
            room.trainer(
                peft_config=LoraConfig(target_modules=["q_proj"], lora_alpha=0), options={"max_steps": 1}
            ).train(),
        ),
    ),
    *(
        Case(
            f"model with {name}", f"A model with {what}", f"The model {message}. Give the trainer a model with …", meet
        )
        for name, what, message, meet in (
            (
                "an adapter",
                "an adapter, and a `peft_config` for another one",
                "has an adapter already, and `peft_config` would make another",
                lambda room: own_adapter(room, lambda model: None, peft_config=LoraConfig(target_modules=["q_proj"])),
            ),
            (
                "two adapters",
                "two adapters: the saved folder would have the wrong one at its top",
                "has several adapters, and others than `default` are active",
                lambda room: own_adapter(
                    room,
                    lambda model: (
                        model.add_adapter("b", LoraConfig(target_modules=["q_proj"])),
                        model.set_adapter("b"),
                    ),
                ),
            ),
            (
                "a merged adapter",
                "an adapter that is merged",
                "has its adapter merged into the base weights",
                lambda room: own_adapter(room, lambda model: model.merge_adapter()),
            ),
        )
    ),
    Case(
        "scaled adapter",
        "A model with an adapter whose scale was changed in memory: the saved one would have another",
        "The scale of the model's adapter was changed (`set_scale`, `rescale_adapter_scale`): it is 0.5 at …q_proj, and 1 by its config. …",
        lambda room: own_adapter(
            room,
            lambda model: model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj").scale_layer(0.5),
        ),
    ),
    Case(
        "adapter on the head",
        "LoRA on the head, which would not be trained",
        "`peft_config` puts an adapter on the language modelling head, …Remove `lm_head` from `target_modules`.",
        lambda room: room.rollouts(peft_config=LoraConfig(target_modules=["q_proj", "lm_head"])),
    ),
    *(
        Case(
            f"adapter on a tied head, {name}",
            wrong,
            f"`peft_config` puts an adapter on the language modelling head, …The head is tied to the embeddings{way_out}",
            lambda room, config=config: room.trainer(
                model=str(room.model(config__json={"tie_word_embeddings": True})), peft_config=config
            ),
        )
        for name, wrong, config, way_out in (
            (
                "tokens",
                "`TrainableTokensConfig` on a model whose head is its embeddings",
                TrainableTokensConfig(token_indices=[5, 6]),
                ", so that `TrainableTokensConfig` puts one on both. Train the tokens with `LoraConfig` and its "
                "`trainable_token_indices` instead.",
            ),
            (
                "LoRA",
                "LoRA on such embeddings, and by `ensure_weight_tying` on the head",
                LoraConfig(target_modules=["embed_tokens"], ensure_weight_tying=True),
                ". Leave `ensure_weight_tying` out.",
            ),
        )
    ),
    Case(
        "learned prompt",
        "A learned prompt instead of an adapter",
        "`peft_config` is a learned prompt (…PROMPT_TUNING), which the comparison of the two prompts does not see. Use an adapter of the weights, such as LoRA.",
        lambda room: room.rollouts(peft_config=PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)),
    ),
    Case(
        "quantized without an adapter",
        "4-bit weights without an adapter to train",
        "`load_in_4bit` needs `use_peft: true`: quantized weights cannot be trained themselves.",
        lambda room: room.train(load_in_4bit=True),
    ),
    Case(
        "unknown quantization of the checkpoint",
        "A `quantization_config` in `model_init_kwargs` that transformers does not know",
        "`quantization_config` in `model_init_kwargs` cannot be used: Unknown quantization type, got mxfp5 …",
        lambda room: room.train(model_init_kwargs={"quantization_config": {"quant_method": "mxfp5"}}, use_peft=True),
    ),
    Case(
        "two quantizations",
        "A `quantization_config` in `model_init_kwargs` beside `load_in_4bit: true`",
        "`quantization_config` in `model_init_kwargs` and `load_in_4bit` or `load_in_8bit` are both given: keep one.",
        lambda room: room.train(
            model_init_kwargs={"quantization_config": {"quant_method": "mxfp4"}}, load_in_4bit=True, use_peft=True
        ),
    ),
    Case(
        "quantized trainer without an adapter",
        "The same, in Python",
        "`quantization_config` needs a `peft_config`: quantized weights cannot be trained themselves.",
        lambda room: room.trainer(quantization_config=BitsAndBytesConfig(load_in_4bit=True)),
    ),
    Case(
        "unknown schedule",
        "An unknown learning rate schedule",
        "…recipe.yaml: `lr_scheduler_type` must be one of linear, cosine, …, got 'cosin'.",
        lambda room: room.train(lr_scheduler_type="cosin"),
    ),
    Case(
        "unknown optimizer",
        "An unknown optimizer",
        "…recipe.yaml: `optim` must be one of adamw_torch, …, got 'adamw_fast'.",
        lambda room: room.train(optim="adamw_fast"),
    ),
    Case(
        "backend of one process",
        "A backend for several processes, with one process",
        "`ddp_backend` is gloo, but this is a single process. Launch several with `accelerate launch` or `torchrun`, or leave it out.",
        lambda room: room.train(ddp_backend="gloo"),
    ),
    Case(
        "reference of another vocabulary",
        "A reference with another vocabulary",
        "`ref_model` has a vocabulary of 400 tokens and the model one of 384: their distributions cannot be compared. Use a reference with the same vocabulary.",
        lambda room: room.rollouts(
            model=make_model(), processing_class=make_tokenizer(), ref_model=make_model(vocab_size=400)
        ),
    ),
    Case(
        "routers of a dense model",
        "The routers' loss for a model without routers",
        "`router_aux_loss_coef` is 0.1, but the model (qwen3) has no router logits: the option is for mixtures of experts. Leave it out.",
        lambda room: room.train(router_aux_loss_coef=0.1, method=["kl"]),
    ),
    Case(
        "top_k at temperature 0",
        "A sampling option where nothing is sampled",
        "`top_k` is given, but at `temperature` 0 nothing is sampled. Set a temperature.",
        lambda room: room.train(temperature=0.0, top_k=50),
    ),
    Case(
        "min_p at temperature 0",
        "The same for `targets`",
        "`min_p` is given, but at `temperature` 0 nothing is sampled. Set a temperature.",
        lambda room: room.train(temperature=0.0, min_p=0.1, command="targets", targets_file="t"),
    ),
    Case(
        "two temperatures",
        "An option that is repeated in `generation_kwargs`",
        "`generation_kwargs` sets `temperature`. Set the option `temperature`.",
        lambda room: room.train(temperature=0.0, generation_kwargs={"temperature": 0.7}),
    ),
    Case(
        "drop_last",
        "Fewer rows than a batch, where incomplete batches are left out",
        "`train_dataset` has 2 row(s), fewer than the 8 of one batch, and `dataloader_drop_last` leaves out what fills none: nothing would be trained. Use smaller batches, or leave the option out.",
        lambda room: room.trainer(options={"dataloader_drop_last": True}),
    ),
    Case(
        "drop_last of whole steps",
        "Fewer rows than a step, where balanced batches leave out incomplete steps",
        "`train_dataset` has 2 row(s), fewer than the 4 of one step, and `dataloader_drop_last` leaves out what fills none: nothing would be trained. Use smaller batches, or leave the option out.",
        lambda room: room.trainer(
            options={
                "dataloader_drop_last": True,
                "train_sampling_strategy": "batch_rebalance",
                "per_device_train_batch_size": 1,
                "gradient_accumulation_steps": 4,
            }
        ),
    ),
    Case(
        "megatron",
        "An adapter for Megatron, which is not installed",
        "`peft_config`: `megatron_config` and `megatron_core` would import a package, which is not allowed. …",
        lambda room: room.trainer(
            peft_config=LoraConfig(target_modules="all-linear", megatron_config={"world_size": 1})
        ),
    ),
    Case(
        "encoding option as template variable",
        "An option of the encoding among the template variables of all rows",
        "`chat_template_kwargs` sets `padding`, which is set the same for both sides and is not for the chat template: …",
        lambda room: room.train(chat_template_kwargs={"padding": "max_length"}),
    ),
    *(
        Case(
            f"{option} {value}",
            f"`{option}: {value}`",
            f"`{option}` must be {message}, got {value!r}.",
            lambda room, option=option, value=value: room.train(command="on-policy-consistency", **{option: value}),
        )
        for option, value, message in (
            ("learning_rate", -1.0, "at least 0"),
            ("learning_rate", float("inf"), "at least 0"),
            ("weight_decay", -1.0, "at least 0"),
            ("label_smoothing_factor", 1.0, "at least 0 and below 1"),
            ("weight_decay", float("nan"), "at least 0"),
            ("max_grad_norm", -1.0, "at least 0 (0 is none)"),
            ("max_grad_norm", float("nan"), "at least 0 (0 is none)"),
            ("adam_beta1", 2.0, "at least 0 and below 1"),
            ("adam_epsilon", 0.0, "above 0"),
            ("max_steps", 0, "at least 1, or -1 (the epochs decide)"),
            ("max_steps", -5, "at least 1, or -1 (the epochs decide)"),
            ("seed", -1, "from 0 to 2**32 - 1"),
            ("seed", 2**70, "from 0 to 2**32 - 1"),
            ("data_seed", -1, "from 0 to 2**32 - 1, or None"),
            ("dataloader_num_workers", -1, "at least 0"),
            ("max_length", 0, "at least 1, or None"),
            ("max_completion_length", 0, "at least 1"),
            ("per_device_train_batch_size", 0, "at least 1"),
            ("gradient_accumulation_steps", 0, "at least 1"),
            ("top_p", 2.0, "above 0 and at most 1"),
            ("min_p", 3.0, "between 0 and 1, or None"),
            ("repetition_penalty", 0.0, "above 0"),
            ("loss_temperature", float("nan"), "at least 0.0001"),
            ("num_iterations", 0, "at least 1"),
            ("eval_accumulation_steps", 0, "at least 1, or None"),
        )
    ),
    Case(
        "max_grad_norm None",
        "`max_grad_norm=None` in Python, at which transformers ends in the first step",
        "`max_grad_norm` must be at least 0 (0 is none), got None.",
        lambda room: room.trainer(options={"max_grad_norm": None}),
    ),
    Case(
        "dataset_num_proc -1",
        "`dataset_num_proc: -1`",
        "`dataset_num_proc` must be at least 1, or None, got -1.",
        lambda room: room.train(dataset_num_proc=-1),
    ),
]
