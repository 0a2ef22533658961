"""Loggers that name the process only where there are several."""

import os
from collections.abc import MutableMapping
from typing import Any

from accelerate import PartialState
from accelerate.logging import MultiProcessAdapter
from accelerate.logging import get_logger as get_accelerate_logger


class Logger(MultiProcessAdapter):
    """
    A logger of accelerate, without its `[RANK 0]` in runs of one process. Where accelerate has no state yet, this logger makes none.
    Otherwise a process group would begin without the options of the trainer to come (`ddp_backend`, `ddp_timeout`).
    """

    def log(self, level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
        # `stacklevel` is the caller's place, not this one.
        if PartialState._shared_state:
            super().log(level, msg, *args, **{"stacklevel": 3, **kwargs})
        elif os.environ.get("RANK", "0") == "0":
            self.logger.log(level, msg, *args, **{"stacklevel": 2, **kwargs})

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        msg, kwargs = super().process(msg, kwargs)
        return msg.removeprefix("[RANK 0] ") if PartialState().num_processes == 1 else msg, kwargs


def get_logger(name: str) -> Logger:
    """Returns the logger of a module, as accelerate's `get_logger` does."""
    return Logger(get_accelerate_logger(name).logger, {})
