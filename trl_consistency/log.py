"""Loggers that name the process only where there are several."""

from collections.abc import MutableMapping
from typing import Any

from accelerate import PartialState
from accelerate.logging import MultiProcessAdapter
from accelerate.logging import get_logger as get_accelerate_logger


class Logger(MultiProcessAdapter):
    """A logger of accelerate that makes the state it needs, without its `[RANK 0]` in runs of one process."""

    def log(self, level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
        PartialState()
        kwargs.setdefault("stacklevel", 3)  # the caller's place, not this one
        super().log(level, msg, *args, **kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        msg, kwargs = super().process(msg, kwargs)
        return msg.removeprefix("[RANK 0] ") if PartialState().num_processes == 1 else msg, kwargs


def get_logger(name: str) -> Logger:
    """Returns the logger of a module, as accelerate's `get_logger` does."""
    return Logger(get_accelerate_logger(name).logger, {})
