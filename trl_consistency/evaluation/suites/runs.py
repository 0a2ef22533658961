"""Runs suites with their libraries, and reads the scores."""

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from ...config.device import own_randomness
from ...data.messages import without_none
from ...data.rendering import SENTINEL, ProcessingClass, chat_template_of, get_tokenizer
from ...data.template_check import check_variables
from ...data.thinking import thought_span
from ...errors import ConsistencyError, one_line
from ...generation.options import own_options, reads_padding
from .completions import harness_model
from .inspect_logs import inspect_results, warnings_of
from .reply_counts import Replies
from .scores import SuiteScore, is_mean, suite_interval


NO_LIMIT = 10**9  # tokens


@dataclass(frozen=True)
class Suite:
    """
    A task of one of the libraries, and how to call it.

    Args:
        name (`str`):
            Its name in the results.
        library (`str`):
            `"inspect"` or `"lm_eval"`.
        task (`str` or `list[str]`):
            The task's name in the library: `"inspect_evals/xstest"`, `"my_task.py"`; `"mmlu"`, `"my_task.yaml"`.
        options (`Mapping[str, Any]`, *optional*):
            Options of an Inspect task.
        judge (`str`, *optional*):
            The option of an Inspect task that takes the judge.
        version (`str`, *optional*):
            Expected version of the task. Another version causes a warning.

    Raises:
        [`ConsistencyError`]: If the library is another one, or `options` or `judge` is given for one that takes none.
    """

    name: str
    library: Literal["inspect", "lm_eval"]
    task: str | list[str]
    options: Mapping[str, Any] = field(default_factory=dict)
    judge: str | None = None
    version: str | None = None

    def __post_init__(self) -> None:
        if self.library not in ("inspect", "lm_eval"):
            raise ConsistencyError(
                f"`library` of the suite {self.name} must be 'inspect' or 'lm_eval', got {self.library!r}."
            )
        given = [name for name in ("options", "judge") if getattr(self, name)]
        if self.library == "lm_eval" and given:
            raise ConsistencyError(
                f"`{given[0]}` of the suite {self.name} is given, but it is for tasks of Inspect. Write what you want of "
                "lm-evaluation-harness into a .yaml file of your own, and name that as `task`."
            )


@dataclass(frozen=True)
class SuiteOptions:
    """Options for running suites: the arguments of [`run_suites`]."""

    judge: str | None
    limit: int | None
    batch_size: int
    max_new_tokens: int | None
    chat_template_kwargs: dict[str, Any]
    log_dir: str
    progress: bool


def load_suite(suite: Suite, judge: str | None) -> Any:
    """Loads a task with its data, in the library's form. Raises [`ConsistencyError`] if that fails."""
    try:
        return _inspect_task(suite, judge) if suite.library == "inspect" else _lm_eval_tasks(suite)
    except Exception as error:  # the libraries raise any type of error
        raise ConsistencyError(f"`suites`: {suite.name} cannot be loaded: {one_line(error)}") from error


def check_suite(suite: Suite, loaded: Any, processing_class: ProcessingClass, variables: Mapping[str, Any]) -> None:
    """
    Raises [`ConsistencyError`] for a chat template with which lm-evaluation-harness would measure nothing: one that writes content
    blocks alone, since it gives text, or one that has the model think before answers that are scored. It does so too for `variables` that
    the template does not have. `loaded` is from [`load_suite`].
    """
    tokenizer, template = deepcopy(get_tokenizer(processing_class)), chat_template_of(processing_class)
    if read := template.get("default") if isinstance(template, dict) else template:
        check_variables(read, without_none(variables))
    if suite.library != "lm_eval" or not template:
        return
    tokenizer.chat_template = template  # which may be the processor's own
    asked = [{"role": "user", "content": SENTINEL}]
    try:
        written = tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True, **variables)
    except Exception:  # a template may raise anything, and does so again where the harness asks it
        return
    if SENTINEL not in written:
        raise ConsistencyError(
            "`suites`: the chat template writes no message that is text, and lm-evaluation-harness gives none in blocks: the model "
            "would be asked nothing. Use suites under Inspect, or another template."
        )
    ids = tokenizer(text=written, add_special_tokens=False)["input_ids"]
    # A task may begin the answer itself, and no thought is opened then.
    asking = [
        task for task in loaded["tasks"].values() if not getattr(getattr(task, "config", None), "gen_prefix", None)
    ]
    kinds = {getattr(task, "OUTPUT_TYPE", None) for task in asking}
    if kinds & {"loglikelihood", "multiple_choice"} and thought_span(ids, [0], tokenizer)[1]:
        raise ConsistencyError(
            f"`suites`: `{suite.name}` scores given answers right after the prompt, where this chat template makes the model think first: "
            "its figure would mean nothing. Turn thinking off if the template can (`chat_template_kwargs` "
            '{"enable_thinking": false}), or leave the suite out.'
        )


def run_suite(
    suite: Suite, name: str, model: Any, processing_class: ProcessingClass, options: SuiteOptions
) -> list[SuiteScore]:
    """Runs one suite on one model. Raises [`ConsistencyError`] if the library fails, or returns no score."""
    runner = _run_inspect if suite.library == "inspect" else _run_lm_eval
    try:
        scores = runner(suite, name, model, processing_class, options)
    except ConsistencyError:
        raise
    except Exception as error:  # as above
        raise ConsistencyError(f"`suites`: {suite.name} failed on {name}: {one_line(error)}") from error
    if not any(math.isfinite(score.value) for score in scores):
        where = " Inspect's logs say why." if suite.library == "inspect" else ""
        raise ConsistencyError(
            f"`suites`: {suite.name} gave no figure of {name}: none of its samples was scored.{where}"
        )
    return scores


@cache
def _task_manager(include_defaults: bool) -> Any:
    from lm_eval.tasks import TaskManager

    return TaskManager(include_defaults=include_defaults)  # reads thousands of files


def _lm_eval_tasks(suite: Suite) -> dict[str, Any]:
    tasks = [suite.task] if isinstance(suite.task, str) else list(suite.task)
    return dict(_task_manager(not all(Path(task).is_file() for task in tasks)).load(tasks))


def _run_lm_eval(
    suite: Suite, name: str, model: Any, processing_class: ProcessingClass, options: SuiteOptions
) -> list[SuiteScore]:
    from lm_eval import simple_evaluate

    tokenizer = deepcopy(get_tokenizer(processing_class))  # lm_eval sets a padding token on it
    tokenizer.chat_template = chat_template_of(processing_class)  # which may be the processor's own
    batch_size = 1 if reads_padding(model) else options.batch_size
    lm = harness_model(
        pretrained=model,
        tokenizer=tokenizer,
        batch_size=batch_size,
        chat_template_args=options.chat_template_kwargs,
        think_end_token="</think>",
    )
    loaded = _lm_eval_tasks(suite)
    if all(getattr(task, "OUTPUT_TYPE", None) != "loglikelihood_rolling" for task in loaded["tasks"].values()):
        # Of models without a limit (Mamba), the harness would cut prompts. Long texts it reads in windows of this length.
        lm._DEFAULT_MAX_LENGTH = NO_LIMIT
    groups = loaded.get("groups") or {}
    inner = {child for children in (loaded.get("group_map") or {}).values() for child in children}
    with own_options(model), own_randomness(model.device):  # the harness seeds the whole process
        results = simple_evaluate(
            model=lm,
            tasks=[of for part in (groups, loaded["tasks"]) for task, of in part.items() if task not in inner],
            task_manager=_task_manager(False),
            limit=options.limit,
            batch_size=batch_size,
            apply_chat_template=bool(tokenizer.chat_template),
            bootstrap_iters=1000,
        )
    _warn_of(lm.replies, suite, name)
    outer = [task for task in (*groups, *loaded["tasks"]) if task not in inner]
    return [score for task in outer for score in _lm_eval_scores(suite, task, results)]


def _warn_of(replies: Replies, suite: Suite, name: str) -> None:
    for warning in replies.warnings(suite.name, name):
        warnings.warn(warning)


def _lm_eval_scores(suite: Suite, task: str, results: Mapping[str, Any]) -> list[SuiteScore]:
    """Returns the scores of a task or a group; those of its parts, if the group has none of its own."""
    parts = results.get("group_subtasks", {})
    if scores := _own_scores(suite, task, results["results"][task], results, parts):
        return scores
    return [score for part in parts.get(task) or [] for score in _lm_eval_scores(suite, part, results)]


def _own_scores(
    suite: Suite,
    task: str,
    metrics: Mapping[str, Any],
    results: Mapping[str, Any],
    parts: Mapping[str, Sequence[str]],
) -> list[SuiteScore]:
    leaves = _leaves(task, parts)
    total = sum(results["n-samples"][leaf]["effective"] for leaf in leaves)
    scores = []
    for key, value in metrics.items():
        metric, comma, of_filter = key.partition(",")
        if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
            continue
        values = {
            f"{leaf}/{sample['doc_id']}": float(sample[metric])
            for leaf in leaves
            for sample in results["samples"][leaf]
            if sample["filter"] == of_filter and isinstance(sample.get(metric), int | float)
        }
        values = values if is_mean(value, values) else {}
        stderr = metrics.get(f"{metric}_stderr,{of_filter}")
        stderr = float(stderr) if isinstance(stderr, int | float) else None
        scores.append(
            SuiteScore(
                suite=suite.name,
                task=task,
                version=str(results["versions"].get(task)),
                metric=metric if of_filter == "none" else f"{metric}/{of_filter}",
                value=float(value),
                interval=suite_interval(metric, float(value), stderr, values),
                total=total,
                values=values,
            )
        )
    return scores


def _leaves(task: str, subtasks: Mapping[str, Sequence[str]]) -> list[str]:
    """Returns the tasks of a group, or the task itself."""
    children = subtasks.get(task) or []
    return [leaf for child in children for leaf in _leaves(child, subtasks)] or [task]


def _inspect_task(suite: Suite, judge: str | None) -> Any:
    """Returns the task, or a name that Inspect resolves."""
    from . import inspect_tasks  # noqa: F401  (it registers the model provider)

    name = str(suite.task)
    if not name.startswith("inspect_evals/"):
        return os.path.relpath(name) if os.path.isabs(name) else name  # Inspect takes no absolute path
    name = name.partition("/")[2]
    return getattr(import_module(f"inspect_evals.{name}"), name)(**_task_options(suite, judge))


def _task_options(suite: Suite, judge: str | None) -> dict[str, Any]:
    return {**suite.options, **({suite.judge: judge} if suite.judge else {})}


def _run_inspect(
    suite: Suite, name: str, model: Any, processing_class: ProcessingClass, options: SuiteOptions
) -> list[SuiteScore]:
    from inspect_ai import eval as inspect_eval
    from inspect_ai.model import get_model

    task = _inspect_task(suite, options.judge)
    replies = Replies()
    evaluated = get_model(
        f"trl_consistency/{name}",
        memoize=False,
        loaded_model=model,
        processing_class=processing_class,
        chat_template_kwargs=options.chat_template_kwargs,
        replies=replies,
    )
    [log] = inspect_eval(
        task,
        model=evaluated,
        task_args=_task_options(suite, options.judge) if isinstance(task, str) else {},
        limit=options.limit,
        max_connections=options.batch_size,
        max_samples=2 * options.batch_size,
        log_dir=str(Path(options.log_dir) / name),
        display="plain" if options.progress else "none",
        score_display=False,
        ctl_server=False,
        **({"max_tokens": options.max_new_tokens} if options.max_new_tokens else {}),
    )
    if log.status != "success" or log.results is None:
        reason = log.error.message if log.error else f"it ended with the status {log.status}"
        raise ConsistencyError(f"`suites`: {suite.name} failed on {name}: {' '.join(reason.split())}")
    if log.eval.model != f"trl_consistency/{name}":
        raise ConsistencyError(
            f"`suites`: {suite.name} has a model of its own, {log.eval.model}, which was measured in place of {name}. "
            "Take `model` out of the task."
        )
    _warn_of(replies, suite, name)
    for warning in warnings_of(log, suite.name, name):
        warnings.warn(warning)
    return inspect_results(suite.name, log)
