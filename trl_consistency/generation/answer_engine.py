"""
Answers of a base model and of adapters on it, all from one vLLM engine: one in this process, or a server.

The engine loads the base model once. Each batch of prompts is sent once, for all models together, so that evaluating
adapters is one pass over the prompts.
"""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

from transformers import GenerationConfig

from ..errors import ConsistencyError, one_line
from ..rope import check_engine_positions
from .server_requests import ServerClient
from .targets import seed_of
from .vllm_engine import OWN_DRAWS, free_memory, shut_down


TRANSFORMERS, VLLM = "transformers", "vllm"

ONE = "base"  # name of the model of an engine that answers for one alone

Batch: TypeAlias = tuple[int, tuple[tuple[int, ...], ...]]  # its seed, and its prompts

Folders = Mapping[str, str | None]  # of each model's adapter, by name; None for the base model

# Requests to a server at a time
AT_ONCE = 64


class Backend(Protocol):
    """Where vLLM runs. `context` is that of the engine in tokens, None if it is unknown."""

    context: int | None

    def start(self) -> None:
        """Loads the base model and the adapters. Called once, before the first answers."""

    def answer(
        self, prompts: list[list[int]], names: Sequence[str], sampling: dict[str, Any]
    ) -> dict[str, list[list[int]]]:
        """
        Returns token ids of each named model's answers to prompts (token ids). They are drawn with the `seed` in `sampling`, and each
        prompt has random numbers of its own.
        """
        ...

    def close(self) -> None:
        """Frees what was loaded."""


class AnswerEngine:
    """
    One engine for several models: [`of`] answers for one of them.

    Args:
        backend ([`Backend`]):
            Where vLLM runs.
        names (`Sequence[str]`):
            Names of the models, in the order in which they are asked.
        sampling (`dict[str, Any]`):
            Options of vLLM's `SamplingParams`, without a seed.
        label (`str`):
            Name of the engine, which cached answers are stored with.
        config ([`~transformers.PreTrainedConfig`]):
            That of the base model.
    """

    def __init__(self, backend: Backend, names: Sequence[str], sampling: dict[str, Any], label: str, config: Any):
        self._config = config
        self._backend, self._names, self._sampling, self._label = backend, list(names), sampling, label
        self._answers: dict[tuple[str, Batch], list[list[int]]] = {}  # of models that were not asked yet
        self._has_started = False

    def of(self, name: str) -> "ModelAnswers":
        """Returns what answers for one model, instead of `model.generate`."""
        return ModelAnswers(self, name, {"engine": self._label, **(OWN_DRAWS if _samples(self._sampling) else {})})

    def start(self) -> None:
        if not self._has_started:
            self._backend.start()
            self._has_started = True

    def answer(self, name: str, prompts: list[list[int]], seed: int) -> list[list[int]]:
        """Returns a model's answers to a batch, which the models after it answer at the same time."""
        batch = seed, tuple(map(tuple, prompts))  # batches of several sets have the same seeds
        if (name, batch) not in self._answers:
            check_engine_positions(self._config, self._backend.context, prompts, self._sampling["max_tokens"])
            names = self._names[self._names.index(name) :]
            answers = self._backend.answer(prompts, names, {**self._sampling, "seed": seed})
            self._answers |= {(of_name, batch): answers[of_name] for of_name in names}
        return self._answers.pop((name, batch))

    def close(self) -> None:
        self._backend.close()


@dataclass
class ModelAnswers:
    """One model of an engine: an [`Engine`][trl_consistency.generation.targets.Engine]."""

    engine: AnswerEngine
    name: str
    options: dict[str, Any]

    def start(self) -> None:
        self.engine.start()

    def __call__(self, prompts: list[list[int]], seed: int) -> list[list[int]]:
        return self.engine.answer(self.name, prompts, seed)


class EngineInProcess:
    """
    A `vllm.LLM` in this process. `options` are its own. `folders` are those of adapters in PEFT's format, with a rank of at most
    `rank`.
    """

    def __init__(self, options: dict[str, Any], folders: Folders, rank: int):
        self._options, self._folders, self._rank = options, folders, rank
        self.context: int | None = options["max_model_len"]
        self._llm: Any = None
        self._requests: dict[str, Any] = {}

    def start(self) -> None:
        # The engine runs in this process, which has loaded torch.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        from vllm import LLM
        from vllm.lora.request import LoRARequest

        adapters = {name: folder for name, folder in self._folders.items() if folder is not None}
        options = dict(self._options)
        if adapters:
            count = len(adapters)
            options |= {"enable_lora": True, "max_lora_rank": self._rank, "max_loras": count, "max_cpu_loras": count}
        try:
            self._llm = LLM(**options)
        except Exception as error:  # errors of vLLM have no common type
            raise ConsistencyError(
                f"vLLM could not start: {type(error).__name__}: {one_line(error)}. Its own messages are above. If memory ran "
                "out, change `vllm_gpu_memory_utilization`, or use `--engine transformers`."
            ) from error
        self._requests = {
            name: LoRARequest(name, number, folder) for number, (name, folder) in enumerate(adapters.items(), 1)
        }

    def answer(
        self, prompts: list[list[int]], names: Sequence[str], sampling: dict[str, Any]
    ) -> dict[str, list[list[int]]]:
        from vllm import SamplingParams

        adapters = {"lora_request": [self._requests.get(name) for name in names for _ in prompts]}
        seeds = _own_seeds(sampling, prompts)
        outputs = self._llm.generate(
            [{"prompt_token_ids": ids} for _ in names for ids in prompts],
            sampling_params=[SamplingParams(**{**sampling, "seed": own}) for _ in names for own in seeds],
            use_tqdm=False,
            **(adapters if self._requests else {}),
        )
        answers = [list(output.outputs[0].token_ids) for output in outputs]
        count = len(prompts)
        return {name: answers[number * count : (number + 1) * count] for number, name in enumerate(names)}

    def close(self) -> None:
        if self._llm is not None:
            shut_down(self._llm)
            self._llm = None
            free_memory()


class EngineOnServer:
    """
    A server that serves the base model and loads adapters while it runs. It must be able to read the `folders`. `base` is the
    base model's name or path, and `prefix` the beginning of the names that adapters get there. `if_slow` is what to do if it does
    not answer in time, where no option sets the `timeout`.
    """

    def __init__(
        self,
        url: str,
        base: str,
        folders: Folders,
        rank: int,
        timeout: float,
        prefix: str,
        if_slow: str | None = None,
    ):
        check_url(url)
        self._url, self._base, self._folders, self._rank, self._timeout = url, base, folders, rank, timeout
        self._served = {name: f"{prefix}-{number}" for number, name in enumerate(folders) if folders[name] is not None}
        self._client: Any = None
        self.context: int | None = None
        self._if_slow = if_slow

    def start(self) -> None:
        self._client = ServerClient(self._url, self._timeout, self._if_slow)
        self._client.check_serves(self._base)
        self.context = self._client.context
        self._load()

    def _load(self) -> None:
        for name, served in self._served.items():
            self._client.load_adapter(served, str(self._folders[name]), self._rank, self._client.model)

    def answer(
        self, prompts: list[list[int]], names: Sequence[str], sampling: dict[str, Any]
    ) -> dict[str, list[list[int]]]:
        # The server gives all prompts of a request its seed.
        parts = [(prompts, sampling)]
        if _samples(sampling):
            seeds = _own_seeds(sampling, prompts)
            parts = [([ids], {**sampling, "seed": own}) for ids, own in zip(prompts, seeds, strict=True)]

        def ask(request: tuple[str, tuple[list[list[int]], dict[str, Any]]]) -> list[list[int]]:
            name, part = request
            return self._client.complete(self._served.get(name, self._client.model), *part)

        def ask_all() -> list[list[int]]:
            requests = [(name, part) for name in names for part in parts]
            with ThreadPoolExecutor(min(len(requests), AT_ONCE)) as pool:
                return [ids for answers in pool.map(ask, requests) for ids in answers]

        answers = self._client.twice(ask_all, self._load, "run the same command again")
        count = len(prompts)
        return {name: answers[number * count : (number + 1) * count] for number, name in enumerate(names)}

    def close(self) -> None:
        if self._client is not None:
            for served in self._served.values():
                self._client.unload_adapter(served)


def _samples(sampling: dict[str, Any]) -> bool:
    """Whether answers are drawn, and not the likeliest ones."""
    return bool(sampling.get("temperature"))


def _own_seeds(sampling: dict[str, Any], prompts: list[list[int]]) -> list[int]:
    """Returns a seed for each prompt of a batch. With one for all, they would have the same random numbers, and be answered alike."""
    return [seed_of(sampling["seed"], place) for place in range(len(prompts))]


def server_of_one(url: str, base: str, timeout: float, generation: GenerationConfig, config: Any) -> ModelAnswers:
    """Returns a server that answers for the model `base`, which it serves, with the options of `model.generate`."""
    sampling: dict[str, Any] = {"temperature": 0.0}
    if generation.do_sample:
        sampling = {name: getattr(generation, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    sampling |= {
        "repetition_penalty": generation.repetition_penalty,
        "max_tokens": generation.max_new_tokens,
        "stop_token_ids": generation.eos_token_id,
    }
    sampling = {name: value for name, value in sampling.items() if value is not None}
    server = EngineOnServer(url, base, {ONE: None}, 1, timeout, "", "Lower `target_batch_size`")
    return AnswerEngine(server, [ONE], sampling, url, config).of(ONE)


def is_url(engine: str) -> bool:
    """Whether the name of an engine is the address of a server."""
    return urlsplit(engine).scheme in ("http", "https") and bool(urlsplit(engine).hostname)


def check_url(engine: str) -> None:
    """Raises [`ConsistencyError`] if an engine is neither known nor an address."""
    if engine not in (TRANSFORMERS, VLLM) and not is_url(engine):
        raise ConsistencyError(
            f"`engine` must be 'transformers', 'vllm', or the address of a vLLM server like http://127.0.0.1:8000, got "
            f"{engine!r}."
        )
