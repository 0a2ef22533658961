"""Checks the folder that a run writes to."""

import os
import tempfile
from pathlib import Path
from typing import Any

from transformers.utils import CONFIG_NAME

from ...errors import ConsistencyError
from ...perturbations.card import made_with
from ...weight_files import ADAPTER_CONFIG


def check_output_dir(output_dir: str, option: str = "output_dir") -> None:
    """Raises [`ConsistencyError`] if the folder that `option` names is not writable."""
    if not output_dir:
        raise ConsistencyError(f"`{option}` is empty: name a folder.")
    try:
        Path(output_dir).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output_dir):
            pass
    except OSError as error:
        raise ConsistencyError(
            f"`{option}` `{output_dir}` is not writable ({error.strerror or error}). Choose another one."
        ) from None


def check_not_model_folder(output_dir: str, *models: Any) -> None:
    """Raises [`ConsistencyError`] if a run would overwrite one of its own models."""
    for model in models:
        if isinstance(model, str) and os.path.isdir(model) and os.path.samefile(model, output_dir):
            raise ConsistencyError(
                f"`output_dir` {output_dir} is the folder of a model that the run uses, which would be overwritten. "
                "Choose another one."
            )


def check_not_data_folder(output_dir: str) -> None:
    """Raises [`ConsistencyError`] if a run would write its model's card over that of pairs, or over a page that is no card."""
    if command := _command_of_card(output_dir):
        raise ConsistencyError(
            f"`output_dir` `{output_dir}` holds data that `trl-consistency {command}` wrote: the model's card would replace their "
            "card. Choose another one."
        )
    if other_page(output_dir) is not None:
        raise ConsistencyError(
            f"`output_dir` `{output_dir}` has a README.md that is no model's card, and the model's would replace it. Choose another "
            "folder, or rename that file."
        )


def other_page(folder: str) -> bytes | None:
    """Returns the README.md of a folder if it is no model's card."""
    text = _readme(folder)
    is_card = text.lstrip("\ufeff").startswith("---") and _command_of_card(folder) is None
    return (Path(folder) / "README.md").read_bytes() if text.strip() and not is_card else None


def _command_of_card(folder: str) -> str | None:
    """Returns the command that wrote the card of a folder of data, if one did."""
    return next((command for command in ("pairs", "convert") if made_with(command) in _readme(folder)), None)


def _readme(folder: str) -> str:
    card = Path(folder) / "README.md"
    return card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""


def check_report_folder(output_dir: str) -> None:
    """Raises [`ConsistencyError`] if a report would be written into the folder of an adapter or a model."""
    for name, what in ((ADAPTER_CONFIG, "an adapter"), (CONFIG_NAME, "a model")):
        if (Path(output_dir) / name).is_file():
            raise ConsistencyError(
                f"`output_dir` {output_dir} holds {what}, and the report would replace its pictures. Choose a separate folder for the "
                "report. `save_to_adapters` writes each adapter's results into its own folder."
            )


def check_adapter_folder(output_dir: str, saves_adapter: bool) -> None:
    """Raises [`ConsistencyError`] if an adapter and a whole model would be saved side by side: one would be taken for the other."""
    if not saves_adapter and os.path.exists(os.path.join(output_dir, ADAPTER_CONFIG)):
        raise ConsistencyError(
            f"`output_dir` {output_dir} holds an adapter, and a whole model would be saved beside it: from that folder the "
            "adapter would be loaded. Choose another one, or remove the adapter's files."
        )
    whole = sorted(Path(output_dir).glob("model*.safetensors")) if saves_adapter else []
    if whole:
        raise ConsistencyError(
            f"`output_dir` {output_dir} holds a whole model ({whole[0].name}), and an adapter would be saved beside it, so that neither "
            "could be told from the other. Choose another one, or remove the model's files."
        )
