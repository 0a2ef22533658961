"""Keeps generated targets on disk, batch by batch, so that a killed run resumes and ends with the same targets."""

import hashlib
import json
import weakref
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from transformers import GenerationConfig

from ..errors import ConsistencyError
from ..files import write_text
from ..json_files import object_in
from ..log import get_logger
from ..upstream import plain_tensors


logger = get_logger(__name__)

# Noted in a model's identity, and no reason to make answers anew, because another version seldom changes them.
LIBRARIES = "libraries"
SAMPLED = 1 << 16  # elements of a weight that tell whether it has changed


class TargetCache:
    """
    A folder of targets that one model generated. Raises [`ConsistencyError`] if it holds those of another model.

    `model.json` holds the model's [`~trl_consistency.generation.model_identity.model_identity`]. Each set of prompts
    and generation options has its own sub-folder with one file per batch. Every file is written whole or not at all.
    """

    # Name of the contents in messages, and the option that sets the folder
    _content, _option = "targets", "target_cache_dir"

    def __init__(self, directory: str | Path, model: dict[str, Any]):
        self.directory = Path(directory)
        self.path: Path | None = None
        self._asked: tuple[Any, ...] | None = None
        self._model = {key: value for key, value in model.items() if key != LIBRARIES}
        described = self.directory / "model.json"
        if described.is_file():
            cached = self._read(described)
            differing = [key for key in {*model, *cached} - {LIBRARIES} if model.get(key) != cached.get(key)]
            if differing:
                differences = ", ".join(
                    f"{key} {cached.get(key)!r}, now {model.get(key)!r}" for key in sorted(differing)
                )
                raise ConsistencyError(
                    f"The cached {self._content} in {self.directory} are another model's ({differences}). Choose another "
                    f"`{self._option}`, or delete that folder."
                )
            self._tell_versions(model.get(LIBRARIES) or {}, cached.get(LIBRARIES) or {})
        else:
            write_text(described, json.dumps(model))

    def _tell_versions(self, now: dict[str, str], cached: dict[str, str]) -> None:
        others = ", ".join(
            f"{name} {cached[name]}, now {now[name]}" for name in now if cached.get(name, now[name]) != now[name]
        )
        if others:
            logger.warning(
                f"The cached {self._content} in {self.directory} are of other versions ({others}), and are taken as they are. Delete that "
                "folder to have all of them made with the present versions."
            )

    def check_model(self, model: Any) -> None:
        """
        Notes the model that is asked first, with its adapters as they are switched then, and its weights. Raises
        [`ConsistencyError`] for another one, or if it was trained since: it would get the answers of the first.
        """
        layers = (of for of in model.modules() if isinstance(of, BaseTunerLayer))
        adapters = next(((tuple(of.active_adapters), of.disable_adapters) for of in layers), None)
        if adapters is None and isinstance(model, PeftModel):  # a learned prompt has no layers
            adapters = tuple(model.active_adapters), model._adapters_disabled
        weights = sums_of_samples(model)
        before, *known = self._asked or (None, None, None)
        if before is not None and (before() is not model or known != [adapters, weights]):
            raise ConsistencyError(
                f"The cache of {self._content} in {self.directory} is used for another model, or for other adapters or weights, than "
                "before. Make a cache of its own for each."
            )
        self._asked = weakref.ref(model), adapters, weights

    def open(self, prompts: list[list[int]], options: dict[str, Any]) -> "TargetCache":
        """Selects the sub-folder for these prompts (token ids) and generation options."""
        # The model is included, because two models may start on an empty folder before either `model.json` exists.
        described = json.dumps([self._model, options], sort_keys=True, default=str)
        digest = hashlib.blake2b(described.encode(), digest_size=10)
        for prompt_ids in prompts:
            digest.update(len(prompt_ids).to_bytes(4, "little") + array("i", prompt_ids).tobytes())
        self.path = self.directory / digest.hexdigest()
        return self

    def has(self, number: int) -> bool:
        """Whether a file of batch `number` exists, even a damaged one."""
        return self._file(number).is_file()

    def get(self, number: int, rows: int) -> list[list[int]] | None:
        """
        Returns the targets of batch `number`, or None if they do not exist. Raises [`ConsistencyError`] if the file is
        damaged or does not hold `rows` targets.
        """
        path = self._file(number)
        if not self.has(number):
            return None
        content = self._read(path)
        completions = content.get("completion_ids")
        if (
            not isinstance(completions, list)
            or len(completions) != rows
            or content.get("digest") != _digest(completions)
        ):
            raise ConsistencyError(self._damaged(path))
        return completions

    def put(self, number: int, completions: list[list[int]]) -> None:
        """Writes the targets of batch `number`."""
        content = {"completion_ids": completions, "digest": _digest(completions)}
        write_text(self._file(number), json.dumps(content))

    def _file(self, number: int) -> Path:
        assert self.path is not None, "`open` comes first"
        return self.path / f"batch-{number:06d}.json"

    def _read(self, path: Path) -> dict[str, Any]:
        content = object_in(path)
        if content is None:
            raise ConsistencyError(self._damaged(path))
        return content

    def _damaged(self, path: Path) -> str:
        return (
            f"The cached {self._content} in {path} are cut short or damaged. Delete that file: it is generated again."
        )


@torch.no_grad()
def sums_of_samples(model: Any) -> list[int]:
    """Returns a sum for each weight over elements drawn from all of it: fast, and other after a training."""
    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    sums = []
    for weight in model.parameters():
        for part in plain_tensors(getattr(weight, "_local_tensor", weight)):  # of a shard
            if part.numel() and not part.is_meta:
                sample = part.reshape(-1)[:: 1 + part.numel() // SAMPLED].contiguous()
                sums.append(int(sample.view(integer[sample.element_size()]).sum(dtype=torch.int64)))
    return sums


class AnswerCache(TargetCache):
    """A folder of answers that are measured or judged, but not trained on."""

    _content, _option = "answers", "output_dir"


def _digest(completions: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(completions).encode(), digest_size=10).hexdigest()


def generation_options(config: GenerationConfig) -> dict[str, Any]:
    """Returns the values of a generation config that can change answers."""
    return {
        key: value
        for key, value in config.to_diff_dict().items()
        if key not in ("transformers_version", "_from_model_config")
    }


@torch.no_grad()
def fingerprint(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """Returns a short hexadecimal digest of the values of named tensors."""
    digest = hashlib.blake2b(digest_size=10)
    for name, tensor in sorted(tensors, key=lambda named: named[0]):  # PEFT may change their order
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        for part in plain_tensors(tensor):
            digest.update(part.detach().reshape(-1).cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()
