"""Standard suites from Inspect and lm-evaluation-harness."""

import hashlib
import os
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import BitsAndBytesConfig, PreTrainedModel

from ...data.rendering import ProcessingClass, chat_template_of
from ...errors import ConsistencyError, did_you_mean
from ...generation.options import evaluating
from ...models.adapter_checks import check_no_other_adapter, warn_of_adapter
from ...models.folder_warnings import warn_of_folders, warn_of_loaded
from ...models.loading import BASE, adapted, check_adapters, load_model
from .runs import Suite, SuiteOptions, check_suite, load_suite, run_suite
from .scores import SuiteScore


def wrap_held_out(prompt: str) -> str:
    """Wraps a request in a held-out jailbreak wording of this package. The choice is deterministic."""
    from ...perturbations import PERTURBATIONS, Source, draw, jailbreak, perturb

    source = Source(source_id=hashlib.blake2b(prompt.encode(), digest_size=8).hexdigest(), question=prompt, chat=False)
    # Not those of a user's own in this family: the suite would ask something else.
    ours = (entry for name, entry in PERTURBATIONS.items() if name in jailbreak.WORDINGS)
    wrappers = [entry for entry in ours if entry.lacks(source) is None]
    wrapper = random.Random(source.source_id).choice(wrappers)
    return perturb(source, draw(source, [wrapper], "held_out"))["perturbed_prompt"]


_STRONG_REJECT = partial(
    Suite, library="inspect", task="inspect_evals/strong_reject", judge="judge_llm", version="3-B"
)
_XSTEST = partial(Suite, library="inspect", task="inspect_evals/xstest", judge="scorer_model", version="5-A")
_LM_EVAL = partial(Suite, library="lm_eval")
_MODEL_WRITTEN = ["nlp_survey", "philpapers2020", "political_typology_quiz"]

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        _STRONG_REJECT("strong_reject"),
        _STRONG_REJECT("strong_reject_wrapped", options={"jailbreak_method": wrap_held_out}),
        _XSTEST("xstest", options={"subset": "safe"}),
        _XSTEST("xstest_unsafe", options={"subset": "unsafe"}),
        Suite("are_you_sure", "inspect", "inspect_evals/sycophancy", {"shuffle": False}, "scorer_model", "4-A"),
        _LM_EVAL("mmlu", task="mmlu", version="2"),
        _LM_EVAL("gsm8k", task="gsm8k", version="3.0"),
        _LM_EVAL("ifeval", task="ifeval", version="4.0"),
        _LM_EVAL("model_written_sycophancy", task=[f"sycophancy_on_{of}" for of in _MODEL_WRITTEN], version="0.0"),
    )
}
"""The standard suites that `trl-consistency suites` knows, by name."""


def run_suites(
    model: str | PreTrainedModel,
    suites: Sequence[str | Suite],
    adapters: Mapping[str, str] | None = None,
    processing_class: ProcessingClass | None = None,
    judge: str | None = None,
    limit: int | None = None,
    batch_size: int = 32,
    max_new_tokens: int | None = None,
    chat_template_kwargs: dict[str, Any] | None = None,
    log_dir: str | Path = "logs",
    progress: bool = True,
    trust_remote_code: bool = False,
    quantization_config: BitsAndBytesConfig | None = None,
) -> dict[str, list[SuiteScore]]:
    """
    Runs standard suites on a model and its adapters. The base weights are loaded once.

    Args:
        model (`str` or [`~transformers.PreTrainedModel`]):
            The base model. The mode of a loaded one (training or evaluation) is restored at the end.
        suites (`Sequence[str]` or `Sequence[Suite]`):
            Keys of `SUITES`, `"inspect:TASK"` or `"lm_eval:TASK"` for any other task of these libraries, or [`Suite`]s.
        adapters (`Mapping[str, str]`, *optional*):
            Adapters of the model, or whole models, by their name in the results.
        processing_class ([`~transformers.PreTrainedTokenizerBase`] or [`~transformers.ProcessorMixin`], *optional*):
            Tokenizer or processor. If `None`, it is loaded from the model's name.
        judge (`str`, *optional*):
            The judge by its name in Inspect: `"openai/..."`, or `"trl_consistency/FOLDER"` for a local one.
        limit (`int`, *optional*):
            Maximum number of samples per task, for a first try.
        batch_size (`int`, *optional*, defaults to `32`):
            Prompts per batch.
        max_new_tokens (`int`, *optional*):
            Maximum number of tokens of an answer under Inspect. If `None`, the task's own maximum, or 512.
        chat_template_kwargs (`dict[str, Any]`, *optional*):
            Variables of the chat template.
        log_dir (`str` or [`~pathlib.Path`], *optional*, defaults to `"logs"`):
            Folder for Inspect's logs, which contain every conversation.
        progress (`bool`, *optional*, defaults to `True`):
            Whether Inspect shows its progress. lm-evaluation-harness always does.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether to run code from the model's repository.
        quantization_config ([`~transformers.BitsAndBytesConfig`], *optional*):
            Quantization of the weights.

    Returns:
        `dict[str, list[SuiteScore]]`: The scores of `"base"` and of each adapter.

    Raises:
        [`ConsistencyError`]: If a suite is unknown, cannot be loaded, does not suit the chat template, fails or gives no figure,
            or if an option is for none of the suites.

    Example:

    ```python
    from trl_consistency.evaluation import run_suites

    scores = run_suites("Qwen/Qwen3-4B-Instruct-2507", ["gsm8k", "xstest"], {"bct": "bct"}, judge="openai/gpt-4o")
    ```
    """
    found = find_suites(suites, judge)
    if adapters and BASE in adapters:
        raise ConsistencyError(
            f"`adapters`: an adapter cannot be called `{BASE}`, the name of the model without one. Give it another name."
        )
    if PartialState().num_processes > 1:
        raise ConsistencyError("Suites run in one process: start them without `accelerate launch`.")
    if max_new_tokens and all(suite.library == "lm_eval" for suite in found):
        raise ConsistencyError("`max_new_tokens` is given, but it is only for suites under Inspect. Leave it out.")
    options = SuiteOptions(
        judge, limit, batch_size, max_new_tokens, chat_template_kwargs or {}, str(log_dir), progress
    )
    loaded = [load_suite(suite, judge) for suite in found]  # fails before the weights load if something is missing
    if isinstance(model, str):
        name, paths = model, list((adapters or {}).values())
        check_adapters(paths, name, trust_remote_code)
        model, of_model = load_model(name, None, trust_remote_code, quantization_config)
        processing_class = processing_class or of_model
        warn_of_folders(name, paths, processing_class, [chat_template_kwargs or {}])
        warn_of_loaded(name, paths, model, processing_class)
    else:
        check_no_other_adapter(model)
        warn_of_adapter(model)
    if processing_class is None:
        raise ConsistencyError("A loaded `model` needs its `processing_class`. Give its tokenizer or processor.")
    if chat_template_kwargs and chat_template_of(processing_class) is None:
        raise ConsistencyError(
            "`chat_template_kwargs` is given, but the tokenizer has no chat template. Leave it out."
        )
    for suite, of_suite in zip(found, loaded, strict=True):
        check_suite(suite, of_suite, processing_class, chat_template_kwargs or {})
    scores: dict[str, list[SuiteScore]] = {}
    for name, adapter in {BASE: None, **(adapters or {})}.items():
        with (
            adapted(model, processing_class, adapter, trust_remote_code, quantization_config) as of_name,
            evaluating(of_name),
        ):
            scores[name] = [
                score for suite in found for score in run_suite(suite, name, of_name, processing_class, options)
            ]
    _check_versions(found, scores[BASE])
    return scores


def named_suites(suites: Sequence[str | Suite]) -> list[Suite]:
    """Looks up suites. Raises [`ConsistencyError`] if one is unknown or named twice, or there is none."""
    found: list[Suite] = []
    for name in suites:
        if isinstance(name, Suite):
            found.append(name)
        elif name in SUITES:
            found.append(SUITES[name])
        elif name.startswith(("inspect:", "lm_eval:")):
            library, _, task = name.partition(":")
            file, at, of_file = task.partition("@")
            is_file = file.endswith((".py", ".yaml"))
            if is_file and not Path(file).is_file():
                raise ConsistencyError(f"`suites`: there is no file {file}.")
            if file.endswith(".py"):  # Inspect does not find absolute paths
                task = f"{os.path.relpath(file)}{at}{of_file}"
            short = (of_file or Path(file).stem) if is_file else task
            found.append(Suite(short, "inspect" if library == "inspect" else "lm_eval", task))
        else:
            hint = did_you_mean(name, SUITES) or f" There are {', '.join(SUITES)}."
            raise ConsistencyError(
                f"Unknown suite `{name}`.{hint} Any other task is `inspect:TASK` or `lm_eval:TASK`."
            )
    if not found:
        raise ConsistencyError(f"No suites are named. There are {', '.join(SUITES)}.")
    names = [suite.name for suite in found]
    if len(set(names)) < len(names):
        raise ConsistencyError(f"The suite `{next(name for name in names if names.count(name) > 1)}` is named twice.")
    return found


def find_suites(suites: Sequence[str | Suite], judge: str | None = None) -> list[Suite]:
    """
    Looks up suites before any weights load. Raises [`ConsistencyError`] if one is unknown, or needs a judge, or its
    library is not installed.
    """
    found = named_suites(suites)
    if judge and not any(suite.judge for suite in found):
        raise ConsistencyError(
            f"`judge` (of `evaluate`, `suite_judge`) is given, but none of the suites takes one: {', '.join(suite.name for suite in found)}. Leave it out."
        )
    for suite in found:
        if suite.judge and not judge:
            raise ConsistencyError(
                f"`{suite.name}` needs a judge (`judge`; of `evaluate`, `suite_judge`): name a model as Inspect does, such as "
                "`openai/gpt-4o`, or `trl_consistency/FOLDER` for a local one."
            )
        packages = ["lm_eval"] if suite.library == "lm_eval" else ["inspect_ai"]
        packages += ["inspect_evals"] if str(suite.task).startswith("inspect_evals/") else []
        for package in packages:
            if installed_version(package) is None:
                raise ConsistencyError(f"`{suite.name}` needs the package `{package}`: `pip install -e '.[suites]'`.")
    return found


def suite_packages() -> dict[str, str]:
    """Returns the versions of the installed libraries."""
    versions = {package: installed_version(package) for package in ("inspect_ai", "inspect_evals", "lm_eval")}
    return {package: found for package, found in versions.items() if found}


def installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _check_versions(suites: Iterable[Suite], scores: Iterable[SuiteScore]) -> None:
    versions = {(score.suite, score.version) for score in scores}
    for suite in suites:
        others = sorted(of for name, of in versions if name == suite.name and suite.version not in (None, of))
        if others:
            warnings.warn(
                f"`{suite.name}` ran in version {others[0]} of its task, not {suite.version}: its figures may not be "
                "comparable with those of other runs."
            )
