"""An ordinary vLLM server that loads adapters while it runs (`vllm serve --enable-lora`), through TRL's client."""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..errors import ConsistencyError
from .origin import is_known


LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


class Server:
    """
    A server that answers with the adapter that it was sent last.

    A request that fails is repeated once, after waiting for the server and loading the adapter again: a server that was
    started again has lost it. One that takes longer than `vllm_server_timeout` is not repeated.

    Args:
        client (`trl.generation.vllm_client.VLLMClient`):
            TRL's client, with a [`~trl_consistency.generation.server_requests.BoundedClient`] in it. Its requests then name
            the adapter.
        args ([`OnPolicyConsistencyConfig`]):
            Options of the run.
        rank (`int`):
            Rank that the server must be started for, for messages.
        vocabulary (`int`):
            Number of tokens that the trainer's model knows.
    """

    def __init__(self, client: Any, args: OnPolicyConsistencyConfig, rank: int, vocabulary: int):
        self._client, self._rank, self._vocabulary = client, rank, vocabulary
        self._needs_log_probs = needs_log_probs(args)
        self.folder = args.vllm_adapter_dir  # None: in memory, which a server on this machine can read
        self._run = secrets.token_hex(4)  # two trainings may use one server
        self._base = client.model
        self._loaded: tuple[str, TemporaryDirectory] | None = None
        self._generate = client.generate
        client.generate = self.generate

    def load(self, number: int, folder: TemporaryDirectory) -> None:
        """Loads an adapter, and drops the one before. Its folder stays until the next one, in case the server restarts."""
        name = f"policy-{self._run}-{number}"
        if self.folder is not None:
            make_readable(Path(folder.name))
        self._twice(lambda: self._post_adapter(name, folder), lambda: None)
        before, self._loaded = self._loaded, (name, folder)
        self._client.model = name
        if before is not None:
            self._drop(*before)

    def generate(self, prompts: list[list[int]], **options: Any) -> dict[str, Any]:
        """Like the client's `generate`, with the adapter."""
        return self._twice(lambda: self._answers(prompts, options), self._load_again)

    def _answers(self, prompts: list[list[int]], options: dict[str, Any]) -> dict[str, Any]:
        """Returns the server's answers. Raises [`ConsistencyError`] if they are not what was asked for."""
        try:
            output = self._generate(prompts, **options)
        except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, ConsistencyError):
                raise
            raise self._misfit(
                f"did not answer with token ids ({type(error).__name__}: {error})", "Use vLLM 0.31"
            ) from None
        completions, log_probs = output["completion_ids"], output["logprobs"]
        if len(completions) != len(prompts) or any(ids is None for ids in (*completions, *output["prompt_ids"])):
            answered = sum(ids is not None for ids in completions)
            raise self._misfit(f"answered {answered} of {len(prompts)} prompts with token ids", "Use vLLM 0.31")
        if max((max(ids) for ids in completions if ids), default=0) >= self._vocabulary:
            raise self._misfit(
                f"serves `{self._base}`, which has tokens that the model in training does not know",
                "Start it with the model in training",
            )
        if self._needs_log_probs and not has_log_probs(completions, log_probs):
            raise self._misfit(
                "did not return the log-probability of each token",
                "Start it with `--logprobs-mode processed_logprobs` and without `--max-logprobs 0`",
            )
        return output

    def _misfit(self, what: str, remedy: str) -> ConsistencyError:
        return ConsistencyError(f"The vLLM server at {self._client.base_url} {what}. {remedy}.")

    def _twice(self, request: Callable[[], Any], before_again: Callable[[], None]) -> Any:
        return self._client.twice(request, before_again, "resume from the last checkpoint")

    def _load_again(self) -> None:
        if self._loaded is not None:
            self._post_adapter(*self._loaded)

    def _post_adapter(self, name: str, folder: TemporaryDirectory) -> None:
        self._client.load_adapter(name, folder.name, self._rank, self._base)

    def _drop(self, name: str, folder: TemporaryDirectory) -> None:
        self._client.unload_adapter(name)
        with suppress(OSError):  # a folder that is gone
            folder.cleanup()


def needs_log_probs(args: OnPolicyConsistencyConfig) -> bool:
    """Whether the trainer uses the log-probability of each token in the engine."""
    return args.vllm_importance_sampling_correction or (args.vllm_check_every > 0 and is_known(args))


def has_log_probs(completions: list[list[int]], log_probs: list[list[Any]] | None) -> bool:
    """Whether each token of the completions comes with its log-probability."""
    return log_probs is not None and [len(row) for row in log_probs] == [len(ids) for ids in completions]


def make_readable(folder: Path) -> None:
    """Lets other users read a folder and its files: the server may run as one of them."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


def check_server_options(args: OnPolicyConsistencyConfig) -> None:
    """
    Raises [`ConsistencyError`] if a server elsewhere could not read the adapters that are written here, or may tell other probabilities
    than those with which it samples, unseen.
    """
    weighs = args.loss_type == "policy_gradient" and args.vllm_importance_sampling_correction
    if weighs and args.temperature != 1 and not args.vllm_check_every:
        raise ConsistencyError(
            f"`vllm_check_every: 0` is not available with `policy_gradient` at the temperature {args.temperature:g} and a server that gets "
            "the adapter: without `--logprobs-mode processed_logprobs` its probabilities would be other ones, and only the check shows it. "
            "Leave `vllm_check_every` out, or set `vllm_importance_sampling_correction: false`."
        )
    url = args.vllm_server_base_url
    if url is not None and (urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname):
        raise ConsistencyError(f"`vllm_server_base_url` must be like http://127.0.0.1:8000, got {url!r}.")
    host = urlsplit(url).hostname if url is not None else args.vllm_server_host
    if args.vllm_adapter_dir is None:
        if host not in LOCAL:
            raise ConsistencyError(
                f"The vLLM server is on another machine ({host}), and takes adapters by path. Set `vllm_adapter_dir` to a "
                "folder that both machines have under the same path."
            )
    elif not os.access(args.vllm_adapter_dir, os.W_OK):
        raise ConsistencyError(f"`vllm_adapter_dir` {args.vllm_adapter_dir} is not a folder that can be written to.")
