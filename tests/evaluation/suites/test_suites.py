"""Suites, on local data of the same shape: those of the real ones are on a hub that tests do not ask."""

import json
import math
import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from scipy.stats import ttest_rel

from tests.helpers.models import make_model, make_tokenizer
from trl_consistency import ConsistencyError
from trl_consistency.evaluation import (
    Suite,
    SuiteScore,
    compare_suites,
    run_suites,
    suites_table,
)
from trl_consistency.evaluation.rates.changes import estimate_change
from trl_consistency.evaluation.rates.intervals import Sample, estimate
from trl_consistency.evaluation.suites import inspect_logs
from trl_consistency.evaluation.suites import registry as suites
from trl_consistency.evaluation.suites import runs as suite_runs
from trl_consistency.evaluation.suites.registry import find_suites, wrap_held_out
from trl_consistency.evaluation.suites.scores import suite_interval
from trl_consistency.perturbations import PERTURBATIONS, perturbation
from trl_consistency.scripts.suites import SuitesArguments, make_results


# Without the libraries.


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(suites, "installed_version", lambda package: "1.0")


@pytest.mark.parametrize(
    ("names", "judge", "message"),
    [
        (["gsm8"], None, "Unknown suite `gsm8`. Did you mean `gsm8k`?"),
        ([], None, "No suites are named"),
        (["mmlu", "gsm8k", "mmlu"], None, "`mmlu` is named twice"),
        (["xstest"], None, "`xstest` needs a judge"),
        (["strong_reject_wrapped"], None, "needs a judge"),
    ],
)
def test_faults_are_found_before_anything_loads(installed, names, judge, message):
    with pytest.raises(ConsistencyError, match=re.escape(message)):
        find_suites(names, judge)


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(suites, "installed_version", lambda package: None)
    with pytest.raises(ConsistencyError, match=r"`gsm8k` needs the package `lm_eval`.*\[suites\]"):
        find_suites(["gsm8k"])


def test_any_other_task_is_named_by_its_library(installed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").touch()
    of_lm_eval, of_inspect, absolute = find_suites(
        ["lm_eval:arc_easy", "inspect:mine.py", f"inspect:{tmp_path}/mine.py@task"]
    )
    assert (of_lm_eval.name, of_lm_eval.library, of_lm_eval.task) == ("arc_easy", "lm_eval", "arc_easy")
    assert (of_inspect.name, of_inspect.library, of_inspect.task) == ("mine", "inspect", "mine.py")
    assert (absolute.name, absolute.task) == ("task", "mine.py@task")
    with pytest.raises(ConsistencyError, match=r"there is no file gone\.py"):
        find_suites(["inspect:gone.py@task"])


@pytest.mark.parametrize("values", [[], [math.nan]])
def test_a_suite_without_a_figure_is_an_error(monkeypatch, values):
    found = [SuiteScore("mine", "mine", "1", "acc", value, None, 0) for value in values]
    monkeypatch.setattr(suite_runs, "_run_inspect", lambda *args: found)
    with pytest.raises(ConsistencyError, match="mine gave no figure of base"):
        suite_runs.run_suite(Suite("mine", "inspect", "mine"), "base", None, None, None)


def log_of(*scored):
    """A log of Inspect with scores of the metric `accuracy`, each by its scorer, reducer and value."""
    scores = [
        SimpleNamespace(
            name=scorer,
            scorer=scorer,
            reducer=reducer,
            metrics={"accuracy": SimpleNamespace(name="accuracy", value=value)},
            scored_samples=4,
            unscored_samples=0,
        )
        for scorer, reducer, value in scored
    ]
    found = SimpleNamespace(task="mine", task_version=1, metadata=None, model="trl_consistency/base")
    return SimpleNamespace(results=SimpleNamespace(scores=scores), reductions=None, eval=found, samples=())


@pytest.mark.parametrize(
    ("scored", "metrics"),
    [
        ([("match", None, 0.25)], ["accuracy"]),
        ([("match", None, 0.25), ("graded", None, 0.75)], ["accuracy/match", "accuracy/graded"]),
        (
            [("match", "mean", 0.25), ("match", "max", 0.5), ("graded", "mean", 0.75)],
            ["accuracy/match/mean", "accuracy/match/max", "accuracy/graded"],
        ),
    ],
)
def test_scorers_of_one_task_keep_a_score_each(scored, metrics):
    base, other = (inspect_logs.inspect_results("mine", log_of(*of)) for of in (scored, scored))
    assert [score.metric for score in base] == metrics
    assert [score.value for score in compare_suites(base, other)] == [0.0] * len(scored)


def test_values_of_a_sample_keep_a_score_each():
    """Of a metric that is no mean, each value of a sample had the name of the others: the last alone was in tables."""
    logs = []
    for shift in (0.0, 0.5):
        log = log_of(("graded", None, 0.25), ("graded", None, 0.5))
        for scored, part in zip(log.results.scores, ("tone", "facts"), strict=True):
            scored.name = part
            scored.metrics["top"] = SimpleNamespace(name="top", value=1.0 + shift * (part == "facts"))
        logs.append(log)
    base, other = (inspect_logs.inspect_results("mine", log) for log in logs)
    assert [score.metric for score in base] == ["tone", "top/tone", "facts", "top/facts"]
    assert [score.value for score in compare_suites(base, other)] == [0.0, 0.0, 0.0, 0.5]


def test_wrappers_are_held_out_and_always_the_same():
    requests = [f"How do I do forbidden thing {number}?" for number in range(30)]
    wrapped = [wrap_held_out(request) for request in requests]
    assert wrapped == [wrap_held_out(request) for request in requests]
    assert len({text.replace(request, "") for text, request in zip(wrapped, requests, strict=True)}) > 5
    assert all(text != request for text, request in zip(wrapped, requests, strict=True))
    training = [
        part
        for entry in PERTURBATIONS.values()
        if entry.family == "jailbreak"
        for wording in entry.wordings["train"]
        for part in re.split(r"\{\w*\}", wording)
        if len(part) > 30
    ]
    assert training
    assert not [part for part in training for text in wrapped if part in text]


def test_wrappers_of_a_user_are_not_among_those_of_the_suite(own_registry):
    """The suite asked something else than its name says, in the processes that had registered one."""
    requests = [f"How do I do forbidden thing {number}?" for number in range(30)]
    before = [wrap_held_out(request) for request in requests]

    @perturbation({"train": ["Please: "], "held_out": ["I beg you: "]}, family="jailbreak")
    def begging(draft, cue):
        """The user begs."""
        draft.wrap(cue.text, "")

    assert [wrap_held_out(request) for request in requests] == before


def score(values, **options):
    values = {str(index): float(value) for index, value in enumerate(values)}
    mean = sum(values.values()) / len(values)
    return SuiteScore("suite", "task", "1", "acc", mean, None, len(values), values=values, **options)


def test_shares_are_compared_on_the_same_samples():
    before, after = [1, 1, 1, 0, 0, 0, 0, 1], [1, 0, 1, 1, 1, 1, 0, 1]
    [difference] = compare_suites([score(before)], [score(after)])
    samples = [Sample(list(map(bool, of_model)), list(map(str, range(8)))) for of_model in (before, after)]
    assert difference.value == pytest.approx(2 / 8)
    assert difference.interval == pytest.approx(estimate(samples, lambda a, b: b - a, (-1.0, 1.0)).interval)
    assert difference.total == 8


def test_interval_of_a_difference_covers():
    """The truth is in about 95 of 100 intervals, though the two models' answers are correlated."""
    generator = torch.Generator().manual_seed(0)
    hits, trials = 0, 1000
    for _ in range(trials):
        shared = torch.rand(80, generator=generator)
        before = (shared < 0.6).tolist()
        after = ((shared < 0.4) | (torch.rand(80, generator=generator) < 0.25)).tolist()
        low, high = compare_suites([score(before)], [score(after)])[0].interval
        hits += low <= 0.4 + 0.6 * 0.25 - 0.6 <= high
    assert 0.93 < hits / trials < 0.985


def test_other_means_are_compared_by_their_samples_too():
    before, after = [0.5, 1.0, 2.5, 3.0], [1.0, 1.0, 3.5, 3.0]
    [difference] = compare_suites([score(before)], [score(after)])
    expected = ttest_rel(after, before).confidence_interval()
    assert difference.interval == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("as_shares", [True, False])
def test_differences_go_by_the_clusters_of_the_samples(as_shares):
    """Twenty samples of each of six sources, which are all alike, counted as 120: the difference seemed sure, beside figures that did not."""
    of_sources = {"before": [1, 1, 1, 1, 0, 0], "after": [1, 0, 0, 0, 0, 0]}
    base, other = (
        score([value if as_shares else 0.5 * value for value in of_source for _ in range(20)])
        for of_source in of_sources.values()
    )
    sources = {str(number): str(number // 20) for number in range(120)}
    [difference] = compare_suites([replace(base, sources=sources)], [replace(other, sources=sources)])
    if as_shares:
        before, after = (
            Sample([bool(value) for value in of_source for _ in range(20)], list(sources.values()))
            for of_source in of_sources.values()
        )
        expected = estimate_change(before, after).interval
    else:
        alone = ttest_rel(*([0.5 * value for value in of_sources[name]] for name in ("after", "before")))
        expected = tuple(alone.confidence_interval())
    assert difference.interval == pytest.approx(expected)
    assert difference.interval[1] > 0
    assert compare_suites([base], [other])[0].interval[1] < 0


def test_only_samples_that_both_have_are_compared():
    base, other = score([1, 1, 0, 0]), score([1, 1, 0])
    [difference] = compare_suites([base], [other])
    assert (difference.value, difference.total, difference.unscored) == (0.0, 3, 1)
    figures = [SuiteScore("suite", "task", "1", "ratio", value, None, 5) for value in (0.25, 0.75)]
    [difference] = compare_suites(figures[:1], figures[1:])
    assert (difference.value, difference.interval) == (0.5, None)


def test_models_that_were_asked_other_samples_are_not_compared():
    """The difference was said to be on the same samples."""
    base, other = score([1, 0]), SuiteScore("suite", "task", "1", "acc", 1.0, None, 2, values={"8": 1.0, "9": 1.0})
    [difference] = compare_suites([base], [other])
    assert (difference.total, difference.unscored, str(difference)) == (0, 2, "nan (n=0), 2 unscored")
    assert difference.to_dict()["value"] is None


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"library": "lm_eval", "options": {"num_fewshot": 5}}, "`options` of the suite mine is given, but it is for tasks of Inspect"),
        ({"library": "lm_eval", "judge": "scorer"}, "`judge` of the suite mine is given, but it is for tasks of Inspect"),
        ({"library": "lm-eval"}, "`library` of the suite mine must be 'inspect' or 'lm_eval', got 'lm-eval'"),
    ],
)  # fmt: skip
def test_what_a_library_does_not_take_is_refused(columns, message):
    """It was ignored."""
    with pytest.raises(ConsistencyError, match=re.escape(message)):
        Suite(**{"name": "mine", "task": "mine", **columns})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 9}, "`max_new_tokens` is given, but it is only for suites under Inspect"),
        (
            {"chat_template_kwargs": {"no_think": True}},
            "`chat_template_kwargs` is given, but the tokenizer has no chat",
        ),
    ],
)
def test_options_that_are_for_none_of_the_suites_are_refused(installed, monkeypatch, options, message):
    """They were ignored."""
    monkeypatch.setattr(suites, "load_suite", lambda *args: None)
    with pytest.raises(ConsistencyError, match=re.escape(message)):
        run_suites(make_model(), ["gsm8k"], None, make_tokenizer(None), **options)


@pytest.mark.parametrize(("suite", "judge"), [("gsm8k", None), ("xstest", "openai/x")])
def test_a_misspelt_variable_of_the_chat_template_is_refused(installed, monkeypatch, suite, judge):
    """Under lm-evaluation-harness it changed nothing, and the results named it."""
    monkeypatch.setattr(suites, "load_suite", lambda *args: None)
    variables = {"no_thinkin": True}
    with pytest.raises(ConsistencyError, match=r"`no_thinkin`, a variable that .* Did you mean `no_think`\?"):
        run_suites(make_model(), [suite], None, make_tokenizer(), judge=judge, chat_template_kwargs=variables)


def test_a_model_in_training_is_asked_in_evaluation_mode(installed, tokenizer, monkeypatch):
    """Inspect's suites were answered with dropout, and those after lm-evaluation-harness left it off."""
    asked = []
    found = [SuiteScore("mine", "mine", "1", "acc", 1.0, None, 1)]
    monkeypatch.setattr(
        suite_runs, "_run_inspect", lambda suite, name, model, *args: asked.append(model.training) or found
    )
    monkeypatch.setattr(suites, "load_suite", lambda *args: None)
    model = make_model().train()
    run_suites(model, [Suite("mine", "inspect", "mine")], None, tokenizer)
    assert (asked, model.training) == ([False], True)


def test_a_base_model_with_an_adapter_in_it_is_warned_about(installed, tokenizer, monkeypatch):
    """Its figures are those of the adapter."""
    found = [SuiteScore("mine", "mine", "1", "acc", 1.0, None, 1)]
    monkeypatch.setattr(suite_runs, "_run_inspect", lambda *args: found)
    monkeypatch.setattr(suites, "load_suite", lambda *args: None)
    base = make_model()
    get_peft_model(base, LoraConfig(target_modules="all-linear"))
    with pytest.warns(UserWarning, match="The model contains an adapter and answers with it"):
        run_suites(base, [Suite("mine", "inspect", "mine")], None, tokenizer)


def test_an_adapter_of_other_prompts_or_another_base_is_warned_about(installed, tokenizer, monkeypatch, tmp_path):
    """By its name, it was measured without a word, though `trl-consistency suites` warned."""
    found = [SuiteScore("mine", "mine", "1", "acc", 1.0, None, 1)]
    monkeypatch.setattr(suite_runs, "_run_inspect", lambda *args: found)
    monkeypatch.setattr(suites, "load_suite", lambda *args: None)
    base, adapter = str(tmp_path / "base"), str(tmp_path / "adapter")
    model = make_model()
    model.save_pretrained(base)
    tokenizer.save_pretrained(base)
    get_peft_model(model, LoraConfig(target_modules="all-linear")).save_pretrained(adapter)
    Path(adapter, "chat_template.jinja").write_text("{{ messages }}")
    Path(adapter, "README.md").write_text("---\nchat_template_kwargs: {no_think: true}\n---\n# mine\n")
    config = Path(adapter, "adapter_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "nobody/other"}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_suites(base, [Suite("mine", "inspect", "mine")], {"mine": adapter})
    said = [str(of.message) for of in caught if adapter in str(of.message)]
    expected = [
        "was trained on nobody/other",
        "has a chat template of its own",
        "was trained with `chat_template_kwargs`",
    ]
    assert [[text in of for of in said].count(True) for text in expected] == [1, 1, 1], said


def test_a_task_of_a_file_gets_its_judge(installed, tokenizer, monkeypatch):
    """Only those of `inspect_evals` did: others were graded by the judge that the task has by default."""
    asked = []

    def run(task, **options):
        asked.append((task, options["task_args"]))
        log = log_of(("match", None, 0.25))
        log.status = "success"
        return [log]

    monkeypatch.setitem(sys.modules, "inspect_ai", SimpleNamespace(eval=run))
    monkeypatch.setitem(sys.modules, "inspect_ai.model", SimpleNamespace(get_model=lambda *args, **options: None))
    monkeypatch.setattr(suite_runs, "_inspect_task", lambda suite, judge: str(suite.task))
    suite = Suite("mine", "inspect", "mine.py", {"subset": "a"}, judge="grader")
    run_suites(make_model(), [suite], None, tokenizer, judge="openai/judge")
    assert asked == [("mine.py", {"subset": "a", "grader": "openai/judge"})]


def asked_of(*samples):
    """A log of Inspect with the metric `accuracy` of samples: their id, input and value, which a failed one lacks."""
    values = [value for *_, value in samples if value is not None]
    log = log_of(("match", None, sum(values) / len(values)))
    log.samples = [
        SimpleNamespace(id=of, epoch=1, input=text, choices=None, events=(), target="", metadata={})
        for of, text, _ in samples
    ]
    reduced = [SimpleNamespace(sample_id=of, value=value) for of, _, value in samples if value is not None]
    log.reductions = [SimpleNamespace(scorer="match", reducer=None, samples=reduced)]
    log.results.scores[0].scored_samples = len(reduced)
    return log


def test_samples_in_another_order_are_compared_with_themselves(monkeypatch):
    """Inspect numbers the samples of a task that shuffles them in their new order: two others were compared under one number."""
    monkeypatch.setattr(inspect_logs, "_as_float", float)
    [base] = inspect_logs.inspect_results("mine", asked_of((1, "Who?", 1.0), (2, "What?", 0.0), (3, "What?", 1.0)))
    [same] = inspect_logs.inspect_results("mine", asked_of((1, "What?", 0.0), (2, "Who?", 1.0), (3, "What?", 1.0)))
    [difference] = compare_suites([base], [same])
    assert (difference.value, difference.total) == (0.0, 3)
    assert base.values == same.values
    [other] = inspect_logs.inspect_results("mine", asked_of((1, "Where?", 0.0), (2, "Who?", 1.0)))
    assert [of.total for of in compare_suites([base], [other])] == [1]
    [named] = inspect_logs.inspect_results("mine", asked_of(("a", "Who?", 1.0), ("b", "Who?", 0.0)))
    assert named.values == {"a": 1.0, "b": 0.0}


def test_samples_that_failed_are_counted(monkeypatch):
    """A task may go on after an error. Its share was one of the others alone, and nothing said so."""
    monkeypatch.setattr(inspect_logs, "_as_float", float)
    [found] = inspect_logs.inspect_results("mine", asked_of((1, "Who?", 1.0), (2, "What?", None), (3, "Where?", None)))
    assert (found.value, found.total, found.unscored) == (1.0, 1, 2)


def test_a_percentage_below_1_is_no_share(monkeypatch):
    """With two epochs, a sample may be worth 0.75, which XSTest counts as neither refusal nor compliance. Its 0.83% was taken for 83%."""
    monkeypatch.setattr(inspect_logs, "_as_float", float)
    log = asked_of(*((number, f"{number}?", value) for number, value in enumerate([0.0, 0.75] + [1.0] * 118)))
    percentage = SimpleNamespace(name="inspect_evals/refusal_rate", value=100 / 120)
    log.results.scores[0].metrics = {"refusal_rate": percentage}
    [found] = inspect_logs.inspect_results("mine", log)
    assert found.value == pytest.approx(1 / 120)
    assert sum(found.values.values()) == 1


def test_versions_of_a_task_are_not_compared():
    base, other = score([1, 0]), score([1, 1])
    with pytest.raises(
        ConsistencyError, match="`suite` ran in version 1 of its task for the base model, and in 2 for"
    ):
        compare_suites([base], [replace(other, version="2")])


def test_where_all_samples_are_alike_the_interval_is_wilsons():
    """With Student's quantile: z^2 / (n + z^2) for t = 2.262157 of nine degrees of freedom."""
    alike = {str(number): 0.0 for number in range(10)}
    for metric in ("acc", "exact_match/strict-match", "accuracy/match", "jailbreak_rate", "sycophancy"):
        assert suite_interval(metric, 0.0, 0.0, alike) == pytest.approx((0.0, 0.33850), abs=1e-4)
    assert suite_interval("acc", 0.5, 0.1, {"a": 0.0, "b": 1.0}) == pytest.approx((0.304, 0.696))
    assert suite_interval("acc", 0.5, None, {}) is None


def test_a_score_that_is_no_share_has_no_interval_of_a_share():
    """Of a score from 0 to 5 whose samples are all 0, the bound was one of a share, 0.18."""
    of_metric = [replace(score([0] * 20), metric="strong_reject_metric")] * 2
    [difference] = compare_suites(of_metric[:1], of_metric[1:])
    assert (difference.value, difference.interval) == (0.0, None)
    alike = {str(number): 0.0 for number in range(20)}
    for metric in ("strong_reject_metric", "mean", "f1", "biased_reasoning"):
        assert suite_interval(metric, 0.0, 0.0, alike) is None
    wide = suite_interval("mean", 0.95, 0.2, {"a": 1.0, "b": 1.0, "c": 0.0})
    assert wide == pytest.approx((0.558, 1.342)), "its scale may be another"


def test_a_difference_that_is_the_same_for_all_samples_has_no_interval():
    """It was one of no width, [2.500, 2.500]."""
    before, after = ([of + shift for of in (0.1, 0.7, 1.3, 2.9)] for shift in (0.0, 2.2))
    [difference] = compare_suites([score(before)], [score(after)])
    assert difference.value == pytest.approx(2.2)
    assert difference.interval is None


def test_table():
    table = suites_table({"base": [score([1, 0])], "bct": []})
    assert [cell.strip() for cell in table.splitlines()[2].split("|")[1:-1]] == ["suite, acc", "0.500 (n=2)", "-"]


def test_results_say_how_they_were_measured():
    options = {"model_revision": "v2", "chat_template_kwargs": '{"no_think": true}'}
    args = SuitesArguments(model_name_or_path="m", suites=["gsm8k"], output_dir="out", **options)
    settings = make_results(args, {}, {})["settings"]
    assert (settings["model_revision"], settings["chat_template_kwargs"]) == ("v2", {"no_think": True})
