"""
Requests to a vLLM server that come to an end.

TRL's client waits without a limit for an answer, and for a server that says that it is not well. Here each request ends
after `vllm_server_timeout` seconds, and so does waiting for a server that is not there.
"""

import json as json_module
import os
import re
import time
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from ..errors import ConsistencyError, one_line
from ..log import get_logger


logger = get_logger(__name__)

Result = TypeVar("Result")

RETRY_SECONDS = 1.0
HEALTH_SECONDS = 10.0  # The server answers this at once, whatever it computes.
# For what a request does not say, a server takes the options in the model's generation_config.json. TRL's client does not say these.
NO_PENALTIES = {"presence_penalty": 0.0, "frequency_penalty": 0.0}
NEUTRAL_SAMPLING = {
    **NO_PENALTIES,
    "repetition_penalty": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
}
# Statuses that do not change by waiting
NO_KEY, NOT_THERE = (401, 403), (404, 405)


class Unanswered(Exception):
    """Raised if a server did not answer as it should; the same request may succeed later."""


class TooSlow(Unanswered):
    """Raised if a server did not answer in time."""


class BoundedClient:
    """
    Mixed into TRL's client: its requests with time-outs, and without the retries that repeat each of them for minutes. What
    is wrong for good raises [`ConsistencyError`], and what may pass [`Unanswered`].
    """

    session: Any
    base_url: str
    request_seconds = 240.0
    if_slow = "Raise `vllm_server_timeout`"
    limit = " (`vllm_server_timeout`)"  # the option that sets the seconds

    def init_communicator(self, device: Any = 0) -> None:
        """Adapters need no connection for weights."""

    def check_server(self, total_timeout: float = 0.0, retry_interval: float = RETRY_SECONDS) -> None:
        """Waits until the server is up, at most `total_timeout` seconds. TRL's constructor calls it first of all."""
        self.session, self.request_seconds = type(self.session)(), total_timeout
        end = time.monotonic() + total_timeout
        while True:
            try:
                self._request("get", f"{self.base_url}/health", min(HEALTH_SECONDS, max(total_timeout, 1.0)))
                return
            except Unanswered as error:
                if time.monotonic() + retry_interval > end:
                    raise ConsistencyError(
                        f"There is no vLLM server at {self.base_url} after {total_timeout:g} seconds{self.limit}: {error}. Start "
                        "it, or see its log."
                    ) from None
            time.sleep(retry_interval)

    def twice(self, request: Callable[[], Result], before_again: Callable[[], None], then: str) -> Result:
        """
        Returns the result of a request. If the server does not answer it, waits for the server, calls `before_again` and
        makes it once more, unless it took too long. `then` ends the message of an error: what the user does afterwards.
        """
        try:
            return request()
        except TooSlow as error:
            raise self._failure(error, f"{self.if_slow}, or see the server's log, and {then}") from None
        except Unanswered as error:
            logger.warning(f"The vLLM server did not answer ({error}). Trying once more.")
        try:
            self.check_server(self.request_seconds)
            before_again()
            return request()
        except Unanswered as error:
            raise self._failure(error, f"See its log, start it again, and {then}") from None

    def _failure(self, error: Unanswered, remedy: str) -> ConsistencyError:
        return ConsistencyError(f"The vLLM server at {self.base_url} did not answer: {error}. {remedy}.")

    def load_adapter(self, name: str, folder: str, rank: int, base: str) -> None:
        """Makes the server load the adapter in a folder under a name. `rank` and `base` are for messages."""
        status, text = self.ask(f"{self.base_url}/v1/load_lora_adapter", {"lora_name": name, "lora_path": folder})
        if status == 404 and "adapter" not in text.lower():
            raise ConsistencyError(
                f"The vLLM server at {self.base_url} does not load adapters while it runs. Start it with "
                f"`VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve {base} --enable-lora --max-lora-rank {rank} "
                "--logprobs-mode processed_logprobs`."
            )
        if status != 200 and "already been loaded" not in text:
            raise ConsistencyError(
                f"The vLLM server at {self.base_url} did not take the adapter ({text}). It must be started with "
                f"`--enable-lora --max-lora-rank {rank}` or more, and be able to read {folder}."
            )

    def unload_adapter(self, name: str) -> None:
        """Has the server drop an adapter, which one that was started again has lost already."""
        with suppress(Unanswered):
            self.ask(f"{self.base_url}/v1/unload_lora_adapter", {"lora_name": name})

    def _get(self, url: str) -> Any:
        return self._json(self._request("get", url, self.request_seconds))

    def _post(self, url: str, json: Any = None) -> Any:
        reply = self._json(self._request("post", url, self.request_seconds, json=json))
        if _was_broken_off(reply):
            raise Unanswered("it broke off answers (`finish_reason` abort)")
        if limit := _own_limit(reply, (json or {}).get("max_tokens")):
            raise ConsistencyError(
                f"The vLLM server at {self.base_url} cut an answer after {limit} tokens, before the {json['max_tokens']} that were asked for: it has a "
                "limit of its own. Start it with `--generation-config vllm`, and without `max_new_tokens` in `--override-generation-config`."
            )
        return reply

    def ask(self, url: str, content: Any) -> tuple[int, str]:
        """Posts JSON about an adapter; returns the status and the beginning of the reply."""
        response = self._request("post", url, self.request_seconds, (200, 400, 404, 500), json=content)
        # vLLM answers with 500 to adapters that it cannot load (`LoRA rank 32 is greater than max_lora_rank 16`).
        if response.status_code == 500 and "lora" not in response.text.lower():
            raise Unanswered(f"500, {excerpt(response.text)}")
        return response.status_code, excerpt(response.text)

    def _json(self, response: Any) -> Any:
        try:
            return response.json()
        except ValueError:
            raise Unanswered(f"it answered with something else than JSON ({excerpt(response.text)})") from None

    def _request(
        self, method: str, url: str, seconds: float, statuses: tuple[int, ...] = (200,), **content: Any
    ) -> Any:
        """Returns a response with one of `statuses`."""
        try:
            response = getattr(self.session, method)(url, timeout=seconds, **content)
        except Exception as error:  # those of `requests`, and of the libraries below it
            if is_timeout(error):
                raise TooSlow(f"no answer within {seconds:g} seconds") from None
            raise Unanswered(one_line(error)) from None
        if response.status_code in NO_KEY:
            raise ConsistencyError(
                f"The vLLM server at {self.base_url} asks for a key ({response.status_code}), which TRL's client does not "
                "send. Start it without `--api-key` and `VLLM_API_KEY`, on a trusted network."
            )
        if response.status_code in NOT_THERE and url.endswith(("/health", "/v1/models")):
            raise ConsistencyError(
                f"What answers at {self.base_url} is not a vLLM server ({response.status_code} for {url}). Another program "
                "may have the port: correct the server's address."
            )
        if response.status_code not in statuses:
            raise Unanswered(f"{response.status_code}, {excerpt(response.text)}")
        return response


class UrlSession:
    """What [`BoundedClient`] uses of `requests.Session`, without that package."""

    def get(self, url: str, timeout: float) -> Any:
        return self._send(Request(url), timeout)

    def post(self, url: str, json: Any, timeout: float) -> Any:
        content = json_module.dumps(json).encode()
        return self._send(Request(url, content, {"Content-Type": "application/json"}), timeout)

    def _send(self, request: Request, timeout: float) -> Any:
        try:
            with urlopen(request, timeout=timeout) as reply:
                status, text = reply.status, reply.read().decode("utf-8", "replace")
        except HTTPError as error:
            status, text = error.code, error.read().decode("utf-8", "replace")
        return SimpleNamespace(status_code=status, text=text, json=lambda: json_module.loads(text))


class ServerClient(BoundedClient):
    """
    A client of its own, for answers without log-probabilities. It needs neither vLLM nor `requests`. `if_slow` is what to do about
    a server that does not answer in time, where no option sets the time.
    """

    def __init__(self, url: str, timeout: float, if_slow: str | None = None):
        if if_slow is not None:
            self.if_slow, self.limit = if_slow, ""
        self.session, self.base_url = UrlSession(), url.rstrip("/")
        self.check_server(timeout)
        listed = self._get(f"{self.base_url}/v1/models")
        try:
            self.model: str = listed["data"][0]["id"]
            self._loaded_from: str | None = listed["data"][0].get("root")
            self.context: int | None = listed["data"][0].get("max_model_len")
            self._names = [str(of["id"]) for of in listed["data"] if of.get("root") == self._loaded_from]
        except (AttributeError, KeyError, IndexError, TypeError):
            raise ConsistencyError(
                f"The vLLM server at {self.base_url} names no model that it serves. Start it with a model (`vllm serve MODEL`)."
            ) from None

    def check_serves(self, model: str) -> None:
        """
        Raises [`ConsistencyError`] if the server loaded another model of the Hub than `model`. Logs a warning if it loaded a folder
        that is called otherwise, which may hold the same one.
        """
        loaded = self._loaded_from
        if loaded is None or not model or any(_may_be_same(of, model) for of in (loaded, *self._names)):
            return
        said = f"The vLLM server at {self.base_url} serves {loaded}, and the model is {model}."
        if loaded.startswith(("/", ".")) and _hub_name(loaded) is None:
            logger.warning(
                f"{said} Only you can tell whether that folder holds the same model. If not, start the server with it, and delete "
                "`_answers` or `_targets` in the output folder: the answers that are kept there would be used again."
            )
            return
        raise ConsistencyError(
            f"{said} Its answers would be another model's. Start it with that model. If it has the same one under another name, start it with "
            f"`--served-model-name {model}`."
        )

    def complete(self, model: str, prompts: list[list[int]], sampling: dict[str, Any]) -> list[list[int]]:
        """Returns token ids of an answer to each prompt (token ids)."""
        body = {"model": model, "prompt": prompts, "return_token_ids": True, **NEUTRAL_SAMPLING, **sampling}
        reply = self._post(f"{self.base_url}/v1/completions", json=body)
        try:
            completions = [choice["token_ids"] for choice in reply["choices"]]
        except (KeyError, TypeError):
            completions = []
        if len(completions) != len(prompts) or None in completions:
            raise ConsistencyError(
                f"The vLLM server at {self.base_url} did not answer each prompt with token ids. Use vLLM 0.31."
            )
        return completions


def _was_broken_off(reply: Any) -> bool:
    """Whether answers were ended from outside: a server whose generation is paused gives what it has, as if these were whole."""
    choices = reply.get("choices") if isinstance(reply, dict) else None
    return isinstance(choices, list) and any(
        isinstance(of, dict) and of.get("finish_reason") == "abort" for of in choices
    )


def _own_limit(reply: Any, asked: int | None) -> int | None:
    """Returns after how many tokens a server cut an answer that had not as many as were asked for, or None."""
    choices = reply.get("choices") if isinstance(reply, dict) and asked else None
    cut = [
        len(of["token_ids"])
        for of in choices or ()
        if isinstance(of, dict) and of.get("finish_reason") == "length" and of.get("token_ids")
    ]
    return next((count for count in cut if asked and count < asked), None)


def _may_be_same(one: str, other: str) -> bool:
    """Whether two names or paths may be those of one model: a folder may be a copy of a model of the Hub, and is called so."""
    names = _hub_name(one), _hub_name(other)
    if None not in names:
        return names[0] == names[1]
    last_of_one, last_of_other = (
        (name or of.rstrip("/").lower()).rsplit("/", 1)[-1] for name, of in zip(names, (one, other), strict=True)
    )
    return last_of_one == last_of_other


def _hub_name(model: str) -> str | None:
    """Returns the name of a model on the Hub, whose cache has folders such as `models--user--name`; None for other folders."""
    if cached := re.search(r"(?:^|/)models--([^/]+?)--([^/]+)", model):
        return f"{cached[1]}/{cached[2]}".lower()
    is_name = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", model) is not None and not os.path.isdir(model)
    return model.lower() if is_name else None


def is_timeout(error: BaseException) -> bool:
    """Whether another library's error says that there was no answer in time."""
    return "timeout" in type(error).__name__.lower() or "timed out" in str(error)


def excerpt(text: str) -> str:
    """Returns the beginning of a reply on one line, for messages."""
    return " ".join(text.split())[:300]
