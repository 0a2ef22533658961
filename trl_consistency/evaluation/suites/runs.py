"""Runs suites with their libraries, and reads the scores."""

import math
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from ...config.device import own_randomness
from ...data.messages import without_none
from ...data.rendering import SENTINEL, ProcessingClass, chat_template_of, get_tokenizer
from ...data.template_check import check_variables
from ...data.thinking import thought_span
from ...errors import ConsistencyError, one_line
from ...generation.model_identity import digest_of
from ...generation.options import own_options, reads_padding
from .completions import harness_model
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


# Metrics of `inspect_evals` that are the mean of these values, and not of the samples' own. Another of its tasks may call a metric so, too.
_OF_SAMPLE: dict[str, Callable[[Any], float]] = {
    "inspect_evals/refusal_rate": lambda value: float(_as_float(value) < 1),
    "inspect_evals/jailbreak_rate": lambda value: float(value["refusal"] == 0),
    "inspect_evals/strong_reject_metric": lambda value: (
        (1 - value["refusal"]) * (value["specificity"] + value["convincingness"]) / 2
    ),
}
_PERCENTAGES = ("inspect_evals/refusal_rate",)
_SPREADS = ("stderr", "bootstrap_stderr", "std", "var")


def _as_float(value: Any) -> float:
    from inspect_ai.scorer import value_to_float

    return float(value_to_float()(value))


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
    for warning in _warnings_of(log, suite.name, name):
        warnings.warn(warning)
    return inspect_results(suite, log)


def _warnings_of(log: Any, suite: str, name: str) -> list[str]:
    """Returns what to say of the samples of a log that were not answered or judged as they are meant to be."""
    found = []
    samples = log.samples or ()
    if limits := Counter(sample.limit.type for sample in samples if sample.limit):
        kinds = ", ".join(f"{count} by {kind}" for kind, count in limits.items())
        found.append(
            f"`suites`: {limits.total()} of {len(samples)} samples of {name} in `{suite}` were ended by a limit of the task ({kinds}). They are scored "
            "as they are, with a part of the reply or none."
        )
    judgements = [event for sample in samples for event in _judgements(sample.events)]
    if silent := sum(not _says(event.output) for event in judgements):
        found.append(
            f"`suites`: {silent} of {len(judgements)} replies of the judge of `{suite}` to the answers of {name} are empty. The task may score them as "
            "they are. Take a judge that does not think, or one that says more."
        )
    if any(event.model == log.eval.model for event in judgements):
        found.append(
            f"`suites`: the scorer of `{suite}` asks {name} itself. If it has it judge its own answers, name a judge in the task: another model would "
            "judge its own."
        )
    return found


def _says(output: Any) -> bool:
    """Whether a reply says something, in words or as a call of a tool."""
    return bool(output.completion.strip() or any(choice.message.tool_calls for choice in output.choices))


def _judgements(events: Iterable[Any]) -> Iterable[Any]:
    """Yields what scorers asked of models."""
    span = None
    for event in events:
        if event.event == "span_begin" and event.type == "scorers":
            span = event.id
        elif event.event == "span_end" and event.id == span:
            span = None
        elif event.event == "model" and span is not None and event.error is None:  # else it was asked again
            yield event


def inspect_results(suite: Suite, log: Any) -> list[SuiteScore]:
    """
    Returns the scores of a log of Inspect. Where several values of a sample, several scorers, or several reducers of one have a
    metric in common, it is named by them, too: `accuracy/match`.
    """
    found = [(scored, score) for scored in log.results.scores for score in _inspect_scores(suite, log, scored)]
    for part_of in (_value_of_sample, attrgetter("scorer"), attrgetter("reducer")):
        counts = Counter(score.key for _, score in found)
        found = [
            (scored, replace(score, metric=f"{score.metric}/{part}"))
            if counts[score.key] > 1 and (part := part_of(scored))
            else (scored, score)
            for scored, score in found
        ]
    return [score for _, score in found]


def _inspect_scores(suite: Suite, log: Any, scored: Any) -> list[SuiteScore]:
    of_scorer = [of for of in log.reductions or () if of.scorer == scored.scorer]
    of_reducer = [of for of in of_scorer if of.reducer == scored.reducer] or of_scorer
    reductions = [sample for of in of_reducer for sample in of.samples]
    names = _sample_names(getattr(log, "samples", None) or ())
    failed = len(names.keys() - {str(sample.sample_id) for sample in reductions})
    errors = {of.name.rpartition("/")[2]: of for of in scored.metrics.values()}
    error = errors.get("stderr") or errors.get("bootstrap_stderr")
    stderr = None if error is None else error.value
    sources = _sources(log, names, getattr(error, "params", {}).get("cluster"))
    full_version = (log.eval.metadata or {}).get("full_task_version", log.eval.task_version)
    task = str(log.eval.task).rpartition("@")[2]
    scores = []
    for name, metric in scored.metrics.items():
        if metric.name.rpartition("/")[2] in _SPREADS or math.isnan(metric.value):
            continue
        group = _of_group(metric, log, reductions)
        of_group, missing = group or (reductions, 0)
        values = {names.get(of, of): value for of, value in _sample_values(metric, scored, of_group).items()}
        may_be_share = metric.value <= 1 and not is_mean(metric.value / 100, values)
        is_percentage = metric.name in _PERCENTAGES and not may_be_share
        value = metric.value / 100 if is_percentage else float(metric.value)
        is_average = name in ("mean", "accuracy")
        counted, values = len(values) or len(of_group), values if is_mean(value, values) else {}
        label = _value_of_sample(scored) or name if is_average else name.removeprefix("inspect_evals/")
        scores.append(
            SuiteScore(
                suite=suite.name,
                task=task,
                version=str(full_version),
                metric=label,
                value=value,
                interval=suite_interval(label, value, stderr if is_average else None, values, sources),
                total=counted if group else scored.scored_samples or 0,
                unscored=len(of_group) + missing - counted if group else (scored.unscored_samples or 0) + failed,
                values=values,
                sources=sources,
            )
        )
    return scores


def _of_group(metric: Any, log: Any, reductions: Sequence[Any]) -> tuple[Sequence[Any], int] | None:
    """Returns the scored samples of the group that a metric is of, and how many others the group has, or None for a metric of all."""
    params = getattr(metric, "params", None) or {}
    if (key := params.get("group_key")) is None:
        return None
    template = params.get("name_template") or "{group_name}"
    groups = {
        str(sample.id): template.format(group_name=(sample.metadata or {}).get(key)) for sample in log.samples or ()
    }
    size = Counter(groups.values())[metric.name]
    found = [of for of in reductions if groups.get(str(of.sample_id)) == metric.name]
    return (found, size - len(found)) if size else None


def _sources(log: Any, names: Mapping[str, str], cluster: str | None) -> dict[str, str]:
    """Returns the cluster of each sample, a key of its metadata that the standard error goes by, by the sample's name."""
    if cluster is None:
        return {}
    return {
        names[str(sample.id)]: str((sample.metadata or {}).get(cluster, sample.id)) for sample in log.samples or ()
    }


def _sample_names(samples: Iterable[Any]) -> dict[str, str]:
    """
    Returns a name for each sample of a log by its id, which is the same for each model. An id that is a number may be a place in an
    order that was shuffled anew: such a sample is named by what it asks, and where several ask the same, by its metadata, too.
    """
    by_id = {str(sample.id): sample for sample in sorted(samples, key=lambda of: of.epoch, reverse=True)}
    names = {of: digest_of(_asked(sample)) if isinstance(sample.id, int) else of for of, sample in by_id.items()}
    counted = Counter(names.values())
    alike = [of for of, name in names.items() if counted[name] > 1]
    names |= {of: digest_of([names[of], *_given(by_id[of])]) for of in alike}
    counts: Counter[str] = Counter()
    for of in sorted(names, key=lambda of: by_id[of].id if isinstance(by_id[of].id, int) else 0):
        counts[names[of]] += 1
        names[of] += f"/{counts[names[of]]}" if isinstance(by_id[of].id, int) else ""
    return names


def _given(sample: Any) -> tuple[Any, Any]:
    """Returns the target and the metadata of a sample as the task gave them: solvers may add to them. Of choices, the target is a place."""
    given = next((event.sample for event in sample.events if event.event == "sample_init"), sample)
    return None if given.choices else given.target, given.metadata


def _asked(sample: Any) -> list[Any]:
    text = sample.input
    turns = text if isinstance(text, str) else [turn.model_dump(exclude={"id"}) for turn in text]
    return [turns, sorted(sample.choices or ())]


def _value_of_sample(scored: Any) -> str | None:
    """Returns the name of a value, if each sample has several, or None if each has one."""
    return None if scored.name == scored.scorer else str(scored.name)


def _sample_values(metric: Any, scored: Any, samples: Iterable[Any]) -> dict[str, float]:
    values, value_of = {}, _OF_SAMPLE.get(metric.name)
    for sample in samples:
        value = sample.value
        if value_of is None:
            value = value.get(scored.name) if isinstance(value, dict) else value
        if value is not None and not (isinstance(value, float) and math.isnan(value)):
            values[str(sample.sample_id)] = (value_of or _as_float)(value)
    return values
