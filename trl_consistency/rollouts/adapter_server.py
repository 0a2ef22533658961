"""An ordinary vLLM server that loads adapters while it runs (`vllm serve --enable-lora`), through TRL's client."""

import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

from accelerate.logging import get_logger

from ..config.on_policy_consistency_config import OnPolicyConsistencyConfig
from ..errors import ConsistencyError, one_line


logger = get_logger(__name__)

LOCAL = ("localhost", "127.0.0.1", "::1", "0.0.0.0")


class Server:
    """
    A server that answers with the adapter that it was sent last.

    If a request fails, the adapter is loaded once more before the second try: a server that was started again has lost it.

    Args:
        client (`trl.generation.vllm_client.VLLMClient`):
            TRL's client. Its requests then name the adapter.
        args ([`OnPolicyConsistencyConfig`]):
            Options of the run.
        rank (`int`):
            Rank that the server must be started for, for messages.
    """

    def __init__(self, client: Any, args: OnPolicyConsistencyConfig, rank: int):
        self._client, self._rank, self._timeout = client, rank, args.vllm_server_timeout
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
        self._post_adapter(name, folder)
        before, self._loaded = self._loaded, (name, folder)
        self._client.model = name
        if before is not None:
            self._drop(*before)

    def generate(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Like the client's `generate`, with the adapter."""
        try:
            return self._generate(*args, **kwargs)
        except Exception as error:
            logger.warning(f"The vLLM server did not answer ({one_line(error)}). Loading the adapter again.")
        try:
            self._client.check_server(self._timeout)
            if self._loaded is not None:
                self._post_adapter(*self._loaded)
            return self._generate(*args, **kwargs)
        except ConsistencyError:
            raise
        except Exception as error:
            raise ConsistencyError(
                f"The vLLM server at {self._client.base_url} did not answer with the adapter in training: "
                f"{one_line(error)}. See its log, start it again, and resume from the last checkpoint."
            ) from error

    def _post_adapter(self, name: str, folder: TemporaryDirectory) -> None:
        url = f"{self._client.base_url}/v1/load_lora_adapter"
        try:
            response = self._client.session.post(
                url, json={"lora_name": name, "lora_path": folder.name}, timeout=self._timeout
            )
        except Exception as error:
            raise ConsistencyError(
                f"The vLLM server at {self._client.base_url} cannot be reached: {one_line(error)}"
            ) from error
        if response.status_code == 404 and "adapter" not in response.text.lower():
            raise ConsistencyError(
                f"The vLLM server at {self._client.base_url} does not load adapters while it runs. Start it with "
                f"`VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve {self._base} --enable-lora --max-lora-rank {self._rank} "
                "--logprobs-mode processed_logprobs`."
            )
        if response.status_code != 200 and "already been loaded" not in response.text:
            raise ConsistencyError(
                f"The vLLM server at {self._client.base_url} did not take the adapter in training "
                f"({' '.join(response.text.split())[:300]}). It must be started with `--enable-lora --max-lora-rank "
                f"{self._rank}` or more, and be able to read {Path(folder.name).parent}."
            )

    def _drop(self, name: str, folder: TemporaryDirectory) -> None:
        url = f"{self._client.base_url}/v1/unload_lora_adapter"
        with suppress(Exception):  # a server that was started again has lost it already
            self._client.session.post(url, json={"lora_name": name}, timeout=self._timeout)
        folder.cleanup()


def make_readable(folder: Path) -> None:
    """Lets other users read a folder and its files: the server may run as one of them."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


def check_server_options(args: OnPolicyConsistencyConfig) -> None:
    """Raises [`ConsistencyError`] if a server elsewhere could not read the adapters that are written here."""
    host = urlsplit(args.vllm_server_base_url).hostname if args.vllm_server_base_url else args.vllm_server_host
    if args.vllm_adapter_dir is None:
        if host not in LOCAL:
            raise ConsistencyError(
                f"The vLLM server is on another machine ({host}), and takes adapters by path. Set `vllm_adapter_dir` to a "
                "folder that both machines have under the same path."
            )
    elif not os.access(args.vllm_adapter_dir, os.W_OK):
        raise ConsistencyError(f"`vllm_adapter_dir` {args.vllm_adapter_dir} is not a folder that can be written to.")
