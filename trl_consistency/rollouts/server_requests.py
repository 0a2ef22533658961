"""
Requests to a vLLM server that come to an end.

TRL's client waits without a limit for an answer, and for a server that says that it is not well. Here each request ends
after `vllm_server_timeout` seconds, and so does waiting for a server that is not there.
"""

import time
from typing import Any

from ..errors import ConsistencyError, one_line


RETRY_SECONDS = 1.0
HEALTH_SECONDS = 10.0  # The server answers this at once, whatever it computes.
# Statuses that do not change by waiting
NO_KEY, NOT_THERE = (401, 403), (404, 405)


class Unanswered(Exception):
    """Raised if a server did not answer as it should; the same request may succeed later."""


class BoundedClient:
    """
    Mixed into TRL's client: its requests with time-outs, and without the retries that repeat each of them for minutes.
    What is wrong for good raises [`ConsistencyError`], and what may pass [`Unanswered`].
    """

    session: Any
    base_url: str
    request_seconds = 240.0

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
                        f"There is no vLLM server at {self.base_url} after {total_timeout:g} seconds "
                        f"(`vllm_server_timeout`): {error}. Start it, or see its log."
                    ) from None
            time.sleep(retry_interval)

    def _get(self, url: str) -> Any:
        return self._json(self._request("get", url, self.request_seconds))

    def _post(self, url: str, json: Any = None) -> Any:
        return self._json(self._request("post", url, self.request_seconds, json=json))

    def ask(self, url: str, content: Any) -> tuple[int, str]:
        """Posts JSON; returns the status and the beginning of the reply. Errors of the server itself may pass."""
        response = self._request("post", url, self.request_seconds, (200, 400, 404), json=content)
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
                raise Unanswered(f"no answer within {seconds:g} seconds") from None
            raise Unanswered(one_line(error)) from None
        if response.status_code in NO_KEY:
            raise ConsistencyError(
                f"The vLLM server at {self.base_url} asks for a key ({response.status_code}), which TRL's client does not "
                "send. Start it without `--api-key` and `VLLM_API_KEY`, on a trusted network."
            )
        if response.status_code in NOT_THERE and url.endswith(("/health", "/v1/models")):
            raise ConsistencyError(
                f"What answers at {self.base_url} is not a vLLM server ({response.status_code} for {url}). Another program "
                "may have the port: correct `vllm_server_base_url`, or `vllm_server_host` and `vllm_server_port`."
            )
        if response.status_code not in statuses:
            raise Unanswered(f"{response.status_code}, {excerpt(response.text)}")
        return response


def is_timeout(error: BaseException) -> bool:
    """Whether another library's error says that there was no answer in time."""
    return "timeout" in type(error).__name__.lower() or "timed out" in str(error)


def excerpt(text: str) -> str:
    """Returns the beginning of a reply on one line, for messages."""
    return " ".join(text.split())[:300]
