"""A model's answers to both prompts of pairs, judged: what `trl-consistency pairs --keep_vulnerable` filters by."""

import json
from pathlib import Path
from typing import Any

from accelerate import PartialState
from peft import PeftConfig, PeftModel
from trl import ModelConfig

from ..data.rendering import load_processing_class
from ..data.target_cache import TargetCache, fingerprint
from ..errors import ConsistencyError, one_line
from ..evaluation.run import generate_answers
from ..evaluation.vulnerability import judge_pairs
from ..trainer.checks import check_chat_template
from ..trainer.model_checks import ADAPTER_CONFIG, check_model_folder, check_weights, load_config
from ..trainer.upstream import create_model_from_path
from .loading import resolve_model


# The model's answers while they are made: a killed run goes on from them. Pushing leaves it out.
ANSWERS = "_answers"


def load_model(name: str, revision: str | None = None, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """
    A model in the precision of its checkpoint, on the accelerator if there is one, and its tokenizer or processor. The
    folder of an adapter, as training saves it, stands for its base model with the adapter.

    Raises:
        [`ConsistencyError`]: If it cannot be loaded.
    """
    folder = path = resolve_model(ModelConfig(model_name_or_path=name))
    is_adapter = (Path(folder) / ADAPTER_CONFIG).is_file()
    if is_adapter:
        check_weights(folder)
        path, revision = _base_model(folder)
    check_model_folder(path)
    load_config(path, revision, trust_remote_code)
    processing_class = load_processing_class(folder, None if is_adapter else revision, trust_remote_code)
    options = {"revision": revision, "trust_remote_code": trust_remote_code, "use_safetensors": True}
    try:
        model = create_model_from_path(path, dtype="auto", device_map=None, **options)
        if is_adapter:
            model = PeftModel.from_pretrained(model, folder)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConsistencyError(f"{name} cannot be loaded: {one_line(error)}") from None
    return model.to(PartialState().device).eval(), processing_class


def _base_model(adapter: str) -> tuple[str, str | None]:
    """The model that an adapter was trained on, and its revision."""
    try:
        config = PeftConfig.from_pretrained(adapter)
    except (KeyError, TypeError, ValueError) as error:
        raise ConsistencyError(f"{adapter}/{ADAPTER_CONFIG} cannot be read: {one_line(error)}") from None
    if not config.base_model_name_or_path:
        raise ConsistencyError(
            f"{adapter} is an adapter that does not say of which model: set `base_model_name_or_path` in its "
            f"{ADAPTER_CONFIG}."
        )
    return config.base_model_name_or_path, config.revision


def answer_and_judge(
    rows: list[dict[str, Any]],
    model_name: str,
    revision: str | None,
    max_completion_length: int,
    batch_size: int,
    folder: Path,
    verdicts_file: Path,
) -> list[dict[str, Any]]:
    """
    Has a model answer both prompts of all rows, and writes what it said and the verdicts.

    Returns:
        `list[dict]`: For each row the `outcome`, whether it is `kept`, both grades and both answers.
    """
    model, processing_class = load_model(model_name, revision)
    chats = [row for row in rows if isinstance(row["clean_prompt"], list)]
    if chats:
        check_chat_template(processing_class, {"pairs": chats})
    weights = fingerprint(model.named_parameters())
    cache = TargetCache(folder / ANSWERS / weights, {"name": model_name, "weights": weights})
    prompts = [row[f"{side}_prompt"] for side in ("clean", "perturbed") for row in rows]
    texts = generate_answers(model, processing_class, prompts, max_completion_length, batch_size, cache=cache)
    clean, perturbed = texts[: len(rows)], texts[len(rows) :]
    judged = [
        {
            "outcome": verdict.outcome,
            "kept": verdict.is_kept,
            "clean_verdict": verdict.clean,
            "perturbed_verdict": verdict.perturbed,
            "clean_answer": clean_answer,
            "perturbed_answer": perturbed_answer,
        }
        for verdict, clean_answer, perturbed_answer in zip(
            judge_pairs(rows, clean, perturbed), clean, perturbed, strict=True
        )
    ]
    with verdicts_file.open("w", encoding="utf-8") as file:
        for row, verdict in zip(rows, judged, strict=True):
            file.write(json.dumps({**row, **verdict}, ensure_ascii=False) + "\n")
    return judged
