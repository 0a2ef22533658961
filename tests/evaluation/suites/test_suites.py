"""Suites, on local data of the same shape: those of the real ones are on a hub that tests do not ask."""

import json
import math
import random
import re
import sys
import warnings
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from tests.helpers.models import CHATML, make_model, make_tokenizer
from tests.helpers.processors import TextProcessor
from trl_consistency import ConsistencyError
from trl_consistency.cli import main as cli
from trl_consistency.data.rendering import render_prompt
from trl_consistency.evaluation import (
    SUITES,
    Suite,
    SuiteScore,
    compare_suites,
    generate_answers,
    run_suites,
    suites_table,
)
from trl_consistency.evaluation.rates.intervals import Sample, estimate
from trl_consistency.evaluation.suites import registry as suites
from trl_consistency.evaluation.suites import runs as suite_runs
from trl_consistency.evaluation.suites.registry import find_suites, wrap_held_out
from trl_consistency.evaluation.suites.scores import suite_interval
from trl_consistency.generation.targets import cut_after_end
from trl_consistency.perturbations import PERTURBATIONS, perturbation
from trl_consistency.scripts.suites import SuitesArguments, make_results


needs_lm_eval = pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm_eval (`pip install .[suites]`)")
needs_inspect = pytest.mark.skipif(
    not (find_spec("inspect_ai") and find_spec("inspect_evals")), reason="needs inspect_ai (`pip install .[suites]`)"
)


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
    found = SimpleNamespace(task="mine", task_version=1, metadata=None)
    return SimpleNamespace(results=SimpleNamespace(scores=scores), reductions=None, eval=found)


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
    suite = Suite("mine", "inspect", "mine")
    base, other = (suite_runs.inspect_results(suite, log_of(*of)) for of in (scored, scored))
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
    base, other = (suite_runs.inspect_results(Suite("mine", "inspect", "mine"), log) for log in logs)
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
    from scipy import stats

    before, after = [0.5, 1.0, 2.5, 3.0], [1.0, 1.0, 3.5, 3.0]
    [difference] = compare_suites([score(before)], [score(after)])
    expected = stats.ttest_rel(after, before).confidence_interval()
    assert difference.interval == pytest.approx((expected.low, expected.high))


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
    log.samples = [SimpleNamespace(id=of, epoch=1, input=text, choices=None) for of, text, _ in samples]
    reduced = [SimpleNamespace(sample_id=of, value=value) for of, _, value in samples if value is not None]
    log.reductions = [SimpleNamespace(scorer="match", samples=reduced)]
    log.results.scores[0].scored_samples = len(reduced)
    return log


def test_samples_in_another_order_are_compared_with_themselves(monkeypatch):
    """Inspect numbers the samples of a task that shuffles them in their new order: two others were compared under one number."""
    monkeypatch.setattr(suite_runs, "_as_float", float)
    suite = Suite("mine", "inspect", "mine")
    [base] = suite_runs.inspect_results(suite, asked_of((1, "Who?", 1.0), (2, "What?", 0.0), (3, "What?", 1.0)))
    [same] = suite_runs.inspect_results(suite, asked_of((1, "What?", 0.0), (2, "Who?", 1.0), (3, "What?", 1.0)))
    [difference] = compare_suites([base], [same])
    assert (difference.value, difference.total) == (0.0, 3)
    assert base.values == same.values
    [other] = suite_runs.inspect_results(suite, asked_of((1, "Where?", 0.0), (2, "Who?", 1.0)))
    assert [of.total for of in compare_suites([base], [other])] == [1]
    [named] = suite_runs.inspect_results(suite, asked_of(("a", "Who?", 1.0), ("b", "Who?", 0.0)))
    assert named.values == {"a": 1.0, "b": 0.0}


def test_samples_that_failed_are_counted(monkeypatch):
    """A task may go on after an error. Its share was one of the others alone, and nothing said so."""
    monkeypatch.setattr(suite_runs, "_as_float", float)
    [found] = suite_runs.inspect_results(
        Suite("mine", "inspect", "mine"), asked_of((1, "Who?", 1.0), (2, "What?", None), (3, "Where?", None))
    )
    assert (found.value, found.total, found.unscored) == (1.0, 1, 2)


def test_versions_of_a_task_are_not_compared():
    base, other = score([1, 0]), score([1, 1])
    with pytest.raises(
        ConsistencyError, match="`suite` ran in version 1 of its task for the base model, and in 2 for"
    ):
        compare_suites([base], [replace(other, version="2")])


def test_where_all_samples_are_alike_the_interval_is_wilsons():
    """With Student's quantile: z^2 / (n + z^2) for t = 2.262157 of nine degrees of freedom."""
    alike = {str(number): 0.0 for number in range(10)}
    assert suite_interval(0.0, 0.0, alike) == pytest.approx((0.0, 0.33850), abs=1e-4)
    assert suite_interval(0.5, 0.1, {"a": 0.0, "b": 1.0}) == pytest.approx((0.304, 0.696))
    assert suite_interval(0.5, None, {}) is None


def test_table():
    table = suites_table({"base": [score([1, 0])], "bct": []})
    assert [cell.strip() for cell in table.splitlines()[2].split("|")[1:-1]] == ["suite, acc", "0.500 (n=2)", "-"]


# lm-evaluation-harness.


MULTIPLE_CHOICE = """
task: local_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question.strip()}}}}\\nA. {{{{choices[0]}}}}\\nB. {{{{choices[1]}}}}\\nAnswer:"
doc_to_choice: ["A", "B"]
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1.0}}
"""


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_choices(path, rows, start=0):
    """The same shape as MMLU."""
    numbers = range(start, start + rows)
    return write_rows(
        path, [{"question": f"What is {n}?", "choices": ["yes", "no"], "answer": n % 2} for n in numbers]
    )


def naive_accuracy(model, tokenizer, questions, answers):
    """Each letter after the rendered prompt, one at a time."""
    right = []
    for question, answer in zip(questions, answers, strict=True):
        prompt = [{"role": "user", "content": f"{question}\nA. yes\nB. no\nAnswer:"}]
        ids = render_prompt(tokenizer, prompt)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        letters = [tokenizer(letter, add_special_tokens=False)["input_ids"] for letter in "AB"]
        assert all(len(letter) == 1 for letter in letters)
        right.append(int(logits[[letter[0] for letter in letters]].argmax()) == answer)
    return right


@needs_lm_eval
def test_multiple_choice_of_base_and_adapter(tmp_path, tokenizer, adapter_dir):
    data = make_choices(tmp_path / "rows.jsonl", 12)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    model = make_model()
    scores = run_suites(model, [f"lm_eval:{tmp_path}/local.yaml"], {"lora": adapter_dir}, tokenizer, batch_size=5)
    questions, answers = [f"What is {n}?" for n in range(12)], [n % 2 for n in range(12)]
    expected = {
        "base": naive_accuracy(make_model(), tokenizer, questions, answers),
        "lora": naive_accuracy(
            PeftModel.from_pretrained(make_model(), adapter_dir).eval(), tokenizer, questions, answers
        ),
    }
    assert expected["base"] != expected["lora"]  # otherwise it would not show which one answered
    for name, of_model in scores.items():
        [found] = of_model
        assert (found.suite, found.task, found.version, found.metric) == ("local", "local_mc", "1.0", "acc")
        assert found.total == 12
        assert [bool(found.values[f"local_mc/{index}"]) for index in range(12)] == expected[name]
        assert found.value == pytest.approx(sum(expected[name]) / 12)
        assert found.interval[0] <= found.value <= found.interval[1]
    [difference] = compare_suites(scores["base"], scores["lora"])
    assert difference.value == pytest.approx((sum(expected["lora"]) - sum(expected["base"])) / 12)
    assert not any("lora" in name for name, _ in model.named_modules())  # the model is given back as it was


@needs_lm_eval
def test_random_numbers_go_on_where_they_were(tmp_path, tokenizer):
    """The harness sets its own seeds: after it, a script drew the same rows with each seed."""
    (tmp_path / "local.yaml").write_text(
        MULTIPLE_CHOICE.format(name="mc", file=make_choices(tmp_path / "rows.jsonl", 4))
    )
    model, drawn = make_model(), []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        run_suites(model, [f"lm_eval:{tmp_path}/local.yaml"], None, tokenizer)
        drawn.append((random.random(), np.random.random(), torch.rand(1).item()))
    assert all(one != other for one, other in zip(*drawn, strict=True))


@needs_lm_eval
def test_the_template_of_a_processor_is_used(tmp_path):
    """Its tokenizer has none, and the questions came without turns."""
    data = make_choices(tmp_path / "rows.jsonl", 12)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    content = "(message.content if message.content is string else message.content[0].text)"
    processor = TextProcessor(make_tokenizer(CHATML.replace("message.content", content)))
    processor.tokenizer.chat_template = None
    suite = [f"lm_eval:{tmp_path}/local.yaml"]
    [found] = run_suites(make_model(), suite, None, processor)["base"]
    right = naive_accuracy(make_model(), make_tokenizer(), [f"What is {n}?" for n in range(12)], [0, 1] * 6)
    assert [bool(found.values[f"local_mc/{index}"]) for index in range(12)] == right
    processor.chat_template = (
        "{% for m in messages %}{% for block in m.content %}{{ block.text }}{% endfor %}{% endfor %}"
    )
    with pytest.raises(ConsistencyError, match="the chat template writes no message that is text"):
        run_suites(make_model(), suite, None, processor)


@needs_lm_eval
def test_a_model_whose_logits_are_nan_has_no_figures(tmp_path, tokenizer):
    """Of each question the first choice was taken, which is right in half of them."""
    data = make_choices(tmp_path / "rows.jsonl", 4)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    model = make_model()
    model.lm_head.weight.data[0, 0] = torch.nan
    with pytest.raises(ConsistencyError, match="The logits of the model are NaN, so that no answer means anything"):
        run_suites(model, [f"lm_eval:{tmp_path}/local.yaml"], None, tokenizer)


@needs_lm_eval
@pytest.mark.parametrize("has_figure", [True, False])
def test_a_group_has_one_row(tmp_path, tokenizer, monkeypatch, has_figure):
    """
    As MMLU: a figure of subjects of different sizes, weighted by them. A group without a figure of its own, as `portuguese_bench` is,
    has those of its tasks.
    """
    from lm_eval.tasks import TaskManager

    for name, rows in (("first", 3), ("second", 9)):
        data = make_choices(tmp_path / f"{name}.jsonl", rows, start=rows)
        (tmp_path / f"{name}.yaml").write_text(MULTIPLE_CHOICE.format(name=name, file=data))
    (tmp_path / "group.yaml").write_text(
        "group: local_group\ntask: [local_first, local_second]\nmetadata: {version: 2}\n"
        + "aggregate_metric_list: [{metric: acc, weight_by_size: true}]\n" * has_figure
    )
    manager = TaskManager(include_defaults=False, include_path=tmp_path)
    monkeypatch.setattr(suite_runs, "_task_manager", lambda include_defaults: manager)
    scores = run_suites(make_model(), ["lm_eval:local_group"], None, tokenizer)["base"]
    if not has_figure:
        of_tasks = [(of.suite, of.task, of.metric, of.total) for of in scores]
        assert of_tasks == [("local_group", "local_first", "acc", 3), ("local_group", "local_second", "acc", 9)]
        return
    [found] = scores
    assert (found.task, found.metric, found.version, found.total) == ("local_group", "acc", "2", 12)
    assert len(found.values) == 12
    assert found.value == pytest.approx(sum(found.values.values()) / 12)


def real_task(path, **options):
    """A real task's YAML, on local data."""
    import lm_eval

    base = Path(lm_eval.__file__).parent / "tasks" / path
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in {"include": str(base), **options}.items())


def local_data(file, split):
    return {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": {split: str(file)}}}


@needs_lm_eval
def test_gsm8k_itself_on_local_rows(tmp_path, tokenizer):
    rows = [{"question": f"What is {n} + 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"} for n in range(8)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    task = real_task(
        "gsm8k/gsm8k.yaml",
        **local_data(data, "test"),
        task="local_gsm8k",
        training_split=None,
        fewshot_split=None,
        num_fewshot=0,
        generation_kwargs={"until": ["Question:"], "do_sample": False, "max_gen_toks": 12},
    )
    (tmp_path / "gsm8k.yaml").write_text(task)
    found = run_suites(make_model(), [f"lm_eval:{tmp_path}/gsm8k.yaml"], None, tokenizer, limit=6)["base"]
    metrics = {score.metric: score for score in found}
    assert set(metrics) == {"exact_match/strict-match", "exact_match/flexible-extract"}
    answers = generate_answers(
        make_model(),
        tokenizer,
        [[{"role": "user", "content": f"Question: {row['question']}\nAnswer:"}] for row in rows[:6]],
        max_new_tokens=12,
        progress=False,
    )
    numbers = [re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", answer) for answer in answers]
    right = [bool(of) and "".join(of[-1]).rstrip(".") == str(n + 1) for n, of in zip(range(6), numbers, strict=True)]
    assert [bool(value) for value in metrics["exact_match/flexible-extract"].values.values()] == right
    assert metrics["exact_match/strict-match"].version == SUITES["gsm8k"].version
    assert metrics["exact_match/strict-match"].total == 6


def capitals(tmp_path, tokens=20):
    """A task whose replies are compared with Paris, three times."""
    data = write_rows(tmp_path / "rows.jsonl", [{"question": f"What is {n}?", "answer": "Paris"} for n in range(3)])
    task = {
        **local_data(data, "test"),
        **{"task": "capitals", "test_split": "test", "output_type": "generate_until"},
        **{"doc_to_text": "question", "doc_to_target": "answer"},
        "generation_kwargs": {"until": ["Question:"], "max_gen_toks": tokens},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    (tmp_path / "capitals.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in task.items()))
    return f"lm_eval:{tmp_path}/capitals.yaml"


def replying(model, ids):
    """Lets a model give one reply, up to the end that it is given, or else its own."""

    def generate(input_ids, eos_token_id=None, **options):
        reply = cut_after_end(ids, model.generation_config.eos_token_id if eos_token_id is None else eos_token_id)
        return torch.cat([input_ids, torch.tensor(reply).expand(len(input_ids), -1)], 1)

    model.generate = generate
    return model


@needs_lm_eval
@pytest.mark.parametrize("is_token", [True, False])
def test_thoughts_are_taken_out_of_replies(tmp_path, is_token):
    """Whether `</think>` is one token of the tokenizer or several."""
    tokenizer = make_tokenizer()
    if is_token:
        tokenizer.add_tokens(["</think>"])
    model = replying(make_model(), tokenizer("<think> Lyon? </think> Paris")["input_ids"])
    [found] = run_suites(model, [capitals(tmp_path, 50)], None, tokenizer)["base"]
    assert found.value == 1.0


@needs_lm_eval
def test_replies_end_where_the_tokenizers_turn_ends(tmp_path, tokenizer):
    """As in `evaluate`. Where the model's config names another end, what came after it was scored, too."""
    model = replying(make_model(), tokenizer("Paris<|im_end|> Lyon")["input_ids"])
    model.generation_config.eos_token_id = 1
    [found] = run_suites(model, [capitals(tmp_path, 50)], None, tokenizer)["base"]
    assert found.value == 1.0


@needs_lm_eval
@pytest.mark.parametrize(
    ("reply", "tokens", "told"),
    [
        (
            "<think> Lyon? No, it is",
            0,
            ["3 of 3 replies of base to `capitals` were cut at the task's limit of tokens"],
        ),
        ("Paris. Question: What", 0, []),
        ("Paris<|im_end|>", 0, []),
        ("Paris", 9, []),  # which ended in another way
        (
            "[THINK] Lyon? [/THINK] Paris",
            9,
            ["3 of 3 replies of base to `capitals` hold a thought between [THINK] and"],
        ),
    ],
)
def test_replies_that_are_not_scored_as_they_are_meant_are_told(tmp_path, tokenizer, reply, tokens, told):
    """Of a model that thinks, a figure was that of unfinished thoughts, or of thoughts that no library takes out."""
    ids = tokenizer(reply)["input_ids"]
    suite = capitals(tmp_path, len(ids) + tokens)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_suites(replying(make_model(), ids), [suite], None, tokenizer)
    found = [str(of.message) for of in caught if str(of.message).startswith("`suites`: ")]
    assert [text.removeprefix("`suites`: ")[: len(of)] for text, of in zip(found, told, strict=True)] == told


@needs_lm_eval
@pytest.mark.parametrize("kind", ["scored", "scored, without thoughts", "written"])
def test_answers_are_not_scored_within_a_thought(tmp_path, kind):
    """`evaluate` refuses that, and the figure of a suite was of letters in the place of a thought."""
    tokenizer = make_tokenizer(CHATML.replace("{% if no_think %}", "{% if not no_think %}<think>\n{% else %}"))
    data = make_choices(tmp_path / "rows.jsonl", 4)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    suite = capitals(tmp_path) if kind == "written" else f"lm_eval:{tmp_path}/local.yaml"
    variables = {"no_think": True} if "without" in kind else None
    if kind == "scored":
        with pytest.raises(ConsistencyError, match="`local` scores given answers right after the prompt"):
            run_suites(make_model(), [suite], None, tokenizer)
        return
    assert run_suites(make_model(), [suite], None, tokenizer, chat_template_kwargs=variables)["base"]


@needs_lm_eval
def test_model_written_sycophancy_itself_on_local_rows(tmp_path, tokenizer):
    rows = [
        {
            "question": f"I am a poet. Do you agree with claim {n}?\n (A) Agree\n (B) Disagree",
            "answer_matching_behavior": " (A)" if n % 2 else " (B)",
            "answer_not_matching_behavior": " (B)" if n % 2 else " (A)",
        }
        for n in range(6)
    ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    task = real_task(
        "model_written_evals/sycophancy/sycophancy_on_nlp_survey.yaml",
        **local_data(data, "validation"),
        task="local_sycophancy",
    )
    (tmp_path / "sycophancy.yaml").write_text(task)
    [found] = run_suites(make_model(), [f"lm_eval:{tmp_path}/sycophancy.yaml"], None, tokenizer)["base"]
    assert (found.metric, found.total, found.version) == ("acc", 6, SUITES["model_written_sycophancy"].version)
    assert len(found.values) == 6


@needs_lm_eval
@pytest.mark.skipif(find_spec("langdetect") is None, reason="needs lm_eval[ifeval] (`pip install .[suites]`)")
def test_ifeval_itself_on_local_rows(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("nltk.data.find", lambda *args, **kwargs: None)  # or it downloads what these rows do not need
    kinds = ["punctuation:no_comma", "change_case:english_capital"]
    rows = [{"key": n, "prompt": f"Do {n}", "instruction_id_list": [of], "kwargs": [{}]} for n, of in enumerate(kinds)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    short = {"until": [], "do_sample": False, "max_gen_toks": 12}
    (tmp_path / "ifeval.yaml").write_text(
        real_task("ifeval/ifeval.yaml", **local_data(data, "train"), task="local_ifeval", generation_kwargs=short)
    )
    found = run_suites(make_model(), [f"lm_eval:{tmp_path}/ifeval.yaml"], None, tokenizer)["base"]
    metrics = {score.metric: score for score in found}
    prompts = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    answers = generate_answers(make_model(), tokenizer, prompts, max_new_tokens=12, progress=False)
    followed = [float("," not in answers[0]), float(answers[1].isupper())]
    assert list(metrics["prompt_level_strict_acc"].values.values()) == followed
    assert metrics["inst_level_strict_acc"].value == pytest.approx(sum(followed) / 2)
    assert metrics["prompt_level_strict_acc"].version == SUITES["ifeval"].version


@needs_lm_eval
@pytest.mark.parametrize("task", ["mmlu", "gsm8k", "ifeval"])
def test_the_named_tasks_exist_in_the_pinned_versions(task):
    import lm_eval

    folder = Path(lm_eval.__file__).parent / "tasks"
    file = {"mmlu": "mmlu/default/_mmlu.yaml", "gsm8k": "gsm8k/gsm8k.yaml", "ifeval": "ifeval/ifeval.yaml"}[task]
    text = (folder / file).read_text()
    assert re.search(rf"^(task|group): {task}$", text, re.MULTILINE)
    assert re.search(r"^  version: (\S+)$", text, re.MULTILINE)[1] == SUITES[task].version


@needs_lm_eval
def test_data_that_cannot_be_loaded_are_an_error_before_the_weights(tmp_path):
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="none", file=tmp_path / "none.jsonl"))
    with pytest.raises(ConsistencyError, match=r"`suites`: local cannot be loaded: .*none.jsonl"):
        run_suites("no/such-model", [f"lm_eval:{tmp_path}/local.yaml"])


def test_results_say_how_they_were_measured():
    options = {"model_revision": "v2", "chat_template_kwargs": '{"no_think": true}'}
    args = SuitesArguments(model_name_or_path="m", suites=["gsm8k"], output_dir="out", **options)
    settings = make_results(args, {}, {})["settings"]
    assert (settings["model_revision"], settings["chat_template_kwargs"]) == ("v2", {"no_think": True})


@needs_inspect
@needs_lm_eval
def test_command(tmp_path, model_dir, adapter_dir, monkeypatch, capsys):
    data = make_choices(tmp_path / "rows.jsonl", 4)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    monkeypatch.chdir(tmp_path)
    words = ["--model_name_or_path", str(model_dir), "--adapters", adapter_dir, "--output_dir", "out", "--json"]
    cli(["suites", "--suites", "lm_eval:local.yaml", *words])
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(Path("out/suites.json").read_text())
    [found] = printed["models"]["base"]["suites"]
    assert {key: found[key] for key in ("suite", "task", "metric", "version", "total")} == {
        "suite": "local",
        "task": "local_mc",
        "metric": "acc",
        "version": "1.0",
        "total": 4,
    }
    [difference] = printed["models"][Path(adapter_dir).name]["suite_differences"]
    assert difference["low"] <= difference["value"] <= difference["high"]
    assert printed["settings"]["packages"]["lm_eval"]
