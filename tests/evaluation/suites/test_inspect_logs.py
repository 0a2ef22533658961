"""How logs of Inspect are read: samples, groups and clusters, and what is told of judges and limits."""

import math
from contextlib import suppress

import pytest

from tests.evaluation.suites.test_inspect_suites import inspect_scores, mock
from tests.evaluation.suites.test_lm_eval_suites import needs_inspect
from tests.helpers.models import make_model
from trl_consistency import ConsistencyError
from trl_consistency.evaluation import (
    Suite,
    run_suites,
)


OWN_TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, metric, scorer, stderr

from tests.evaluation.suites.test_inspect_suites import mock

@metric
def refusal_rate():
    return lambda scores: sum(score.as_float() for score in scores) / len(scores)

@scorer(metrics=[METRICS])
def graded():
    async def score(state, target):
        return Score(value=VALUE)

    return score

@task
def mine():
    return Task(dataset=[Sample(input=f"{n}?", id=n) for n in range(10)], scorer=graded()OWN)
"""


def run_own_task(tmp_path, tokenizer, metrics, value, own=""):
    file = tmp_path / "mine.py"
    file.write_text(OWN_TASK.replace("METRICS", metrics).replace("VALUE", value).replace("OWN", own))
    suite = Suite("mine", "inspect", str(file))
    return run_suites(make_model(), [suite], None, tokenizer, max_new_tokens=2, log_dir=tmp_path, progress=False)


@needs_inspect
def test_a_metric_of_another_task_with_the_name_of_one_of_xstest(tmp_path, tokenizer):
    """XSTest's is a percentage. This one is a share, and was divided by 100."""
    [score] = run_own_task(tmp_path, tokenizer, "refusal_rate()", "float(int(state.sample_id) < 5)")["base"]
    assert (score.metric, score.value) == ("refusal_rate", 0.5)


@needs_inspect
def test_a_mean_of_equal_samples_has_no_interval(tmp_path, tokenizer):
    """Its standard error is not 0 but for rounding, and the interval had no width."""
    [score] = run_own_task(tmp_path, tokenizer, "mean(), stderr()", "0.7")["base"]
    assert score.value == pytest.approx(0.7)
    assert score.interval is None


@needs_inspect
def test_a_task_with_a_model_of_its_own_is_refused(tmp_path, tokenizer):
    """That was measured, as the base model and as each adapter."""
    with pytest.raises(
        ConsistencyError, match="mine has a model of its own, mockllm/model, which was measured in place of base"
    ):
        run_own_task(tmp_path, tokenizer, "mean()", "1.0", ", model=mock(lambda text: 'A')")


@needs_inspect
def test_samples_are_named_by_what_they_ask(tmp_path):
    """As Inspect itself numbers them."""
    from inspect_ai import Task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.scorer import match

    found = []
    for order in ((0, 1, 2), (2, 0, 1)):
        samples = [Sample(input=f"Which is {number}?", target=str(number % 2)) for number in order]
        task = Task(dataset=MemoryDataset(samples), scorer=match())
        found.append(inspect_scores(task, mock(lambda text: "1" if "1" in text else "0"), tmp_path)["accuracy"])
    assert found[0].values == found[1].values
    assert len(found[0].values) == 3
    assert not any(name in found[0].values for name in "123")


@needs_inspect
def test_samples_that_ask_the_same_are_named_by_their_metadata(tmp_path):
    """They were paired by their place, which a task may shuffle. What a solver adds to the metadata is of one model."""
    from inspect_ai import Task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.scorer import Score, mean, scorer
    from inspect_ai.solver import solver

    @solver
    def note():
        async def solve(state, generate):
            state.metadata["noted"] = len(found)
            return state

        return solve

    @scorer(metrics=[mean()])
    def graded():
        async def score(state, target):
            return Score(value=float(state.metadata["number"] % 2))

        return score

    found = []
    for order in ((0, 1, 2, 3), (3, 0, 2, 1)):
        samples = [Sample(input="Which?", metadata={"number": number}) for number in order]
        task = Task(dataset=MemoryDataset(samples), solver=note(), scorer=graded())
        found.append(inspect_scores(task, mock(str), tmp_path)["mean"])
    assert found[0].values == found[1].values
    assert len(found[0].values) == 4


@needs_inspect
@pytest.mark.parametrize("template", ["{group_name}", "{group_name}_of"])
@pytest.mark.parametrize("reducers", [None, ["mean", "max"]])
def test_a_group_has_its_own_number_of_samples(tmp_path, template, reducers):
    """It was that of all."""
    from inspect_ai import Epochs, Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import Score, grouped, mean, scorer

    @scorer(metrics=[grouped(mean(), "of", name_template=template)])
    def graded():
        async def score(state, target):
            if state.sample_id == 8:
                raise ValueError("no reply")
            return Score(value=float(state.sample_id == 1))

        return score

    samples = [Sample(input=f"{number}?", id=number, metadata={"of": "ab"[number > 2]}) for number in range(1, 9)]
    epochs = Epochs(2, reducers) if reducers else None
    task = Task(dataset=samples, scorer=graded(), epochs=epochs, fail_on_error=False)
    scores = inspect_scores(task, mock(str), tmp_path)
    counts = {name: (score.value, score.total, score.unscored, len(score.values)) for name, score in scores.items()}
    of_group = {"a": (0.5, 2, 0, 2), "b": (0.0, 5, 1, 5)}
    assert counts | {template.format(group_name=name): of for name, of in of_group.items()} == counts
    assert counts["all"] == (pytest.approx(1 / 7), 7, 1, 7)


@needs_inspect
def test_groups_and_clusters_go_by_the_metadata_that_the_task_gave(tmp_path):
    """A solver changed it, and the groups were those of the changed one."""
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import Score, accuracy, grouped, mean, scorer, stderr
    from inspect_ai.solver import solver

    @solver
    def change():
        async def solve(state, generate):
            state.metadata["of"] = "z"
            return state

        return solve

    @scorer(metrics=[grouped(mean(), "of"), accuracy(), stderr(cluster="of")])
    def graded():
        async def score(state, target):
            return Score(value=float(state.sample_id == 1))

        return score

    samples = [Sample(input=f"{number}?", id=number, metadata={"of": "ab"[number > 2]}) for number in range(1, 9)]
    scores = inspect_scores(Task(dataset=samples, solver=change(), scorer=graded()), mock(str), tmp_path)
    assert {name: (scores[name].value, scores[name].total, scores[name].unscored) for name in "ab"} == {
        "a": (0.5, 2, 0),
        "b": (0.0, 6, 0),
    }
    assert sorted(scores["accuracy"].sources.values()) == ["a"] * 2 + ["b"] * 6


@needs_inspect
@pytest.mark.parametrize("reducers", [[], ["mean"]])
def test_metrics_of_the_scores_of_each_epoch(tmp_path, reducers):
    """All samples were called unscored, and there was no difference by samples."""
    from inspect_ai import Epochs, Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import Score, grouped, mean, metric, scorer

    @metric(scores="unreduced")
    def share():
        return lambda scores: sum(of.as_float() for of in scores) / len(scores)

    @scorer(metrics=[share()] if reducers else [mean(), grouped(mean(), "of", all=False)])
    def graded():
        async def score(state, target):
            return Score(value=float(state.sample_id == 1 and state.epoch == 1))

        return score

    samples = [Sample(input=f"{number}?", id=number, metadata={"of": "ab"[number > 2]}) for number in range(1, 6)]
    scores = inspect_scores(Task(dataset=samples, scorer=graded(), epochs=Epochs(2, reducers)), mock(str), tmp_path)
    of_all = scores["share" if reducers else "mean"]
    assert (of_all.value, of_all.total, of_all.unscored) == (pytest.approx(0.1), 10, 0)
    assert sorted(of_all.values.values()) == [0.0] * 4 + [0.5]
    if not reducers:
        assert (scores["a"].value, scores["a"].total, scores["a"].unscored) == (0.25, 2, 0)


@needs_inspect
def test_a_group_of_scores_with_several_values(tmp_path):
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import Score, grouped, metric, scorer

    @metric
    def highest():
        return lambda scores: max(score.score.value["x"] for score in scores)

    @scorer(metrics=[grouped(highest(), "of")])
    def graded():
        async def score(state, target):
            return Score(value={"x": float(state.sample_id), "y": 0.0})

        return score

    samples = [Sample(input=f"{number}?", id=number, metadata={"of": "ab"[number > 2]}) for number in range(1, 9)]
    scores = inspect_scores(Task(dataset=samples, scorer=graded()), mock(str), tmp_path)
    assert {name: (of.value, of.total, of.unscored) for name, of in scores.items() if name != "all"} == {
        "a": (2.0, 2, 0),
        "b": (8.0, 6, 0),
    }


@needs_inspect
@pytest.mark.parametrize("number", [8, "²"])
def test_a_sample_without_a_cluster_is_one_of_its_own(tmp_path, number):
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import Score, mean, scorer, stderr

    @scorer(metrics=[mean(), stderr(cluster="of")])
    def graded():
        async def score(state, target):
            return Score(value=math.nan if state.sample_id == number else float(state.sample_id))

        return score

    samples = [Sample(input=f"{of}?", id=of, metadata={"of": "ab"[of > 2]}) for of in range(1, 6)]
    task = Task(dataset=[*samples, Sample(input="8?", id=number)], scorer=graded())
    score = inspect_scores(task, mock(str), tmp_path)["mean"]
    assert (score.value, score.total, score.unscored) == (3.0, 5, 1)
    assert sorted(score.sources.values()) == sorted([*"aabbb", str(number)])


@needs_inspect
@pytest.mark.parametrize("judge", ["model_graded_qa()", "model_graded_qa(model=mock(lambda text: 'GRADE: C'))"])
def test_models_that_judge_themselves_are_told(tmp_path, tokenizer, judge, recwarn):
    file = tmp_path / "mine.py"
    file.write_text(
        "from inspect_ai import Task, task\nfrom inspect_ai.dataset import Sample\nfrom inspect_ai.scorer import model_graded_qa\n"
        "from tests.evaluation.suites.test_inspect_suites import mock\n\n@task\ndef mine():\n"
        f"    return Task(dataset=[Sample(input=f'{{n}}?', target='1') for n in range(3)], scorer={judge})\n"
    )
    model = make_model()
    model.config.max_position_embeddings = 4096
    with suppress(ConsistencyError):  # No reply of the tiny model is a grade.
        run_suites(model, [Suite("mine", "inspect", str(file))], None, tokenizer, max_new_tokens=2, log_dir=tmp_path)
    told = [str(of.message) for of in recwarn if "asks base itself" in str(of.message)]
    assert len(told) == (judge == "model_graded_qa()")


@needs_inspect
def test_samples_that_a_limit_ended_are_told(tmp_path, tokenizer, recwarn):
    run_own_task(tmp_path, tokenizer, "mean()", "1.0", ", message_limit=1")
    [told] = [str(of.message) for of in recwarn if "limit of the task" in str(of.message)]
    assert "10 of 10 samples of base in `mine` were ended by a limit of the task (10 by message)" in told


@needs_inspect
def test_a_judge_may_answer_by_a_call_of_a_tool_or_after_an_error(tmp_path):
    """Neither is an empty reply."""
    from types import SimpleNamespace

    from trl_consistency.evaluation.suites.inspect_logs import warnings_of

    def asked(said, calls=None, error=None):
        message = SimpleNamespace(tool_calls=calls)
        output = SimpleNamespace(completion=said, choices=[SimpleNamespace(message=message)])
        return SimpleNamespace(event="model", model="judge", output=output, error=error)

    begin = SimpleNamespace(event="span_begin", type="scorers", id="1")
    events = [begin, asked("", error="rate limit"), asked("", calls=["grade"]), asked("C")]
    log = SimpleNamespace(
        samples=[SimpleNamespace(events=events, limit=None)], eval=SimpleNamespace(model="trl_consistency/base")
    )
    assert warnings_of(log, "suite", "base") == []
    events.append(asked(" "))
    assert [text[:40] for text in warnings_of(log, "suite", "base")] == ["`suites`: 1 of 3 replies of the judge of"]


@needs_inspect
@pytest.mark.parametrize("says_nothing", [True, False])
def test_empty_replies_of_a_judge_are_told(tmp_path, tokenizer, says_nothing, recwarn):
    """That of a thought that does not end is empty. `are_you_sure` takes it for a no, and nothing was said."""
    file = tmp_path / "judged.py"
    file.write_text(JUDGED_TASK)
    suite = Suite("judged", "inspect", str(file), judge="judge")
    judge = mock(lambda prompt: "" if says_nothing else "Y")
    run_suites(make_model(), [suite], None, tokenizer, judge=judge, max_new_tokens=2, log_dir=tmp_path, progress=False)
    told = [str(of.message) for of in recwarn if "of the judge" in str(of.message)]
    assert told == says_nothing * [
        "`suites`: 3 of 3 replies of the judge of `judged` to the answers of base are empty. The task may score them as they are. Take a judge "
        "that does not think, or one that says more."
    ]


JUDGED_TASK = """
from inspect_ai import Task, task
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, mean, scorer

@scorer(metrics=[mean()])
def judged(judge):
    async def score(state, target):
        return Score(value=float((await judge.generate("Right?")).completion == "Y"))

    return score

@task
def mine(judge):
    return Task(dataset=[Sample(input=f"{n}?", id=n) for n in range(3)], scorer=judged(judge))
"""
