"""Which rows `evaluate` and `predict` measure, if a trainer has prepared them before."""

from multiprocessing import active_children
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import IterableDataset

from tests.helpers.models import make_pairs, make_tokenizer
from tests.helpers.on_policy import make_trainer as make_on_policy_trainer
from tests.helpers.paired import make_trainer
from trl_consistency.data.repeated_stream import CountedStream
from trl_consistency.trainer import evaluation
from trl_consistency.trainer.evaluated_sets import loading_all_rows


PAIRS = make_pairs()


def two_trainers(tmp_path, **options):
    """Two trainers of one model that render the same rows with different templates."""
    template = tmp_path / "other.jinja"
    template.write_text("{{ 'Q: ' }}" + make_tokenizer().chat_template)
    first = make_trainer(tmp_path / "first", PAIRS, eval_dataset=PAIRS, **options)
    return first, make_trainer(tmp_path / "second", PAIRS, chat_template_path=str(template), **options)


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"method": "act"}])
@pytest.mark.parametrize("given", ["set", "rows of it", "stream"])
def test_a_set_that_another_trainer_prepared_is_rendered_anew(tmp_path, options, given):
    first, second = two_trainers(tmp_path, **options)
    rows = {"set": PAIRS, "rows of it": PAIRS.select(range(3)), "stream": PAIRS}[given]
    prepared = {"set": first.eval_dataset, "rows of it": first.eval_dataset.select(range(3))}.get(given)
    prepared = first.eval_dataset.to_iterable_dataset() if given == "stream" else prepared
    expected = second.evaluate(rows)["eval_loss"]
    assert first.evaluate(rows)["eval_loss"] != pytest.approx(expected, abs=1e-4)  # the template matters
    assert second.evaluate(prepared)["eval_loss"] == pytest.approx(expected, abs=1e-6)
    if given != "stream":
        assert second.predict(prepared).metrics["test_loss"] == pytest.approx(expected, abs=1e-6)


def test_a_set_that_is_called_train_is_an_evaluation_set(tmp_path, model_dir):
    """With a template of another model, it was shuffled, and its report stood in the place of the training data's."""
    template = {"chat_template_path": str(model_dir)}
    trainer = make_trainer(tmp_path, PAIRS, eval_dataset={"train": PAIRS.select(range(3))}, method="act", **template)
    assert {name: report.rows for name, report in trainer.alignment.items()} == {
        "train_dataset": len(PAIRS),
        "eval_dataset['train']": 3,
    }
    assert trainer.eval_dataset["train"]["clean_prompt"] == PAIRS["clean_prompt"][:3]


def test_own_sets_are_taken_as_they_are(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, PAIRS, eval_dataset={"one": PAIRS, "two": PAIRS})
    monkeypatch.setattr(trainer, "_render", pytest.fail)
    trainer.evaluate(trainer.train_dataset)
    trainer.evaluate(trainer.eval_dataset)
    trainer.predict(trainer.eval_dataset["one"])


def test_persistent_workers_read_the_set_that_is_given(tmp_path):
    one, two = PAIRS.select(range(3)), PAIRS.select(range(3, 8))
    plain = make_trainer(tmp_path / "plain", PAIRS, eval_dataset=one)
    expected = [plain.evaluate(of)["eval_loss"] for of in (one, two)]
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    trainer = make_trainer(tmp_path / "workers", PAIRS, eval_dataset=one, **workers)
    losses = [trainer.evaluate(*given)["eval_loss"] for given in ([], [two], [one], [])]
    assert losses == pytest.approx([expected[0], expected[1], expected[0], expected[0]], abs=1e-6)
    several = trainer.evaluate({"one": one, "two": two})
    assert [several["eval_one_loss"], several["eval_two_loss"]] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("make", [make_trainer, make_on_policy_trainer])
def test_evaluations_leave_no_workers(tmp_path, make):
    before = {process.pid for process in active_children()}
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    trainer = make(tmp_path, PAIRS, eval_dataset=PAIRS.select(range(2)), **workers)
    for _ in range(2):
        trainer.evaluate()
        trainer.evaluate(PAIRS.select(range(2, 4)))
        trainer.predict(PAIRS.select(range(2)))
    assert [process for process in active_children() if process.pid not in before] == []


def test_persistent_workers_read_what_was_changed_since(tmp_path):
    """Trainer keeps the loader of its own set, with the rows and the rollouts that it had."""
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}
    trainer = make_on_policy_trainer(tmp_path, PAIRS, eval_dataset=PAIRS.select(range(2)), **workers)
    trainer.evaluate()
    trainer.args.num_generations_eval = 3
    assert len(trainer.get_eval_dataloader().dataset) == 2 * 3
    trainer.eval_dataset = trainer.train_dataset
    assert len(trainer.get_eval_dataloader().dataset) == len(PAIRS) * 3


class FilledStream(CountedStream):
    """As several processes read a stream: the last batch is filled up with rows of the first."""

    def __iter__(self):
        rows = list(self.dataset)
        self.rows = len(rows)
        yield from [*rows, rows[0]]


@pytest.fixture
def of_several(monkeypatch):
    """Evaluations read streams as one of several processes does."""
    counted = lambda dataset, trainer: FilledStream(dataset) if isinstance(dataset, IterableDataset) else None  # noqa: E731
    monkeypatch.setattr(evaluation, "counted_stream", counted)


def test_a_set_after_a_stream_is_measured_to_its_end(tmp_path, of_several):
    """With persistent workers, the first set was measured on as many rows as the stream has, from its second evaluation on."""
    sets = {"one": PAIRS.select(range(5)), "two": PAIRS.select(range(5, 8)).to_iterable_dataset()}
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "per_device_eval_batch_size": 2}
    trainer = make_trainer(tmp_path, PAIRS, eval_dataset=sets, **workers)
    first, second = ({name: trainer.evaluate()[f"eval_{name}_loss"] for name in sets} for _ in range(2))
    assert first == second


@pytest.mark.long
@pytest.mark.parametrize("whole", [True, False])
def test_predictions_of_a_stream_have_its_rows_alone(tmp_path, of_several, whole):
    trainer = make_trainer(tmp_path, PAIRS, per_device_eval_batch_size=2, eval_do_concat_batches=whole)
    rows = PAIRS.select(range(5))
    expected, found = trainer.predict(rows), trainer.predict(rows.to_iterable_dataset())
    for ours, theirs in ((found.predictions, expected.predictions), (found.label_ids, expected.label_ids)):
        sizes = [len(ours)] if whole else [len(batch) for batch in ours]
        assert sizes == ([5] if whole else [2, 2, 1])
        assert np.array_equal(ours, theirs) if whole else all(map(np.array_equal, ours, theirs))
    assert found.metrics["test_loss"] == pytest.approx(expected.metrics["test_loss"], abs=1e-6)


def test_a_stream_is_predicted_on_policy(tmp_path):
    trainer = make_on_policy_trainer(tmp_path, PAIRS)
    metrics = trainer.predict(PAIRS.select(range(3)).to_iterable_dataset()).metrics
    assert metrics["test_loss"] == pytest.approx(
        trainer.predict(PAIRS.select(range(3))).metrics["test_loss"], abs=1e-6
    )


@pytest.mark.long
def test_persistent_workers_leave_streams_of_rollouts_alone(tmp_path):
    """TRL reads such streams without workers."""
    workers = {"dataloader_num_workers": 1, "dataloader_persistent_workers": True, "dataloader_prefetch_factor": 2}
    stream = PAIRS.to_iterable_dataset()
    trainer = make_on_policy_trainer(tmp_path, stream, eval_dataset=stream, max_steps=1, **workers)
    trainer.train()
    assert trainer.evaluate()["eval_loss"] >= 0


def test_predictions_are_in_the_order_of_their_rows_under_group_by_length(tmp_path):
    trainer = make_trainer(tmp_path, PAIRS, train_sampling_strategy="group_by_length", per_device_eval_batch_size=2)
    lengths = (trainer.predict(PAIRS).label_ids != -100).sum(1)
    assert lengths.tolist() == [len(ids) for ids in trainer.train_dataset["completion_ids"]]


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"method": "kl"}])
def test_an_evaluation_has_all_rows_under_drop_last(tmp_path, options):
    trainer = make_trainer(tmp_path / "all", PAIRS, **options)
    batches = {"per_device_train_batch_size": 3, "per_device_eval_batch_size": 5, "dataloader_drop_last": True}
    dropping = make_trainer(tmp_path / "dropping", PAIRS, **options, **batches)
    assert dropping.evaluate(PAIRS)["eval_loss"] == pytest.approx(trainer.evaluate(PAIRS)["eval_loss"], abs=1e-6)
    few = PAIRS.select(range(3))  # fewer than a batch
    few_of_all = trainer.predict(few).metrics["test_loss"]
    assert dropping.predict(few).metrics["test_loss"] == pytest.approx(few_of_all, abs=1e-6)
    assert dropping.args.dataloader_drop_last
    dropping.train()
    assert dropping.state.max_steps == dropping.args.num_train_epochs * (len(PAIRS) // 3)


def test_an_on_policy_evaluation_has_all_rows_under_drop_last(tmp_path):
    trainer = make_on_policy_trainer(tmp_path, PAIRS, per_device_eval_batch_size=8, dataloader_drop_last=True)
    assert trainer.evaluate(PAIRS.select(range(3)))["eval_loss"] > 0  # 6 rollouts, fewer than a batch


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_predictions_of_a_stream_are_in_the_order_of_its_rows(tmp_path, workers):
    """Several workers took turns with its shards."""
    options = {"method": "bct", "per_device_eval_batch_size": 2, "dataloader_num_workers": workers}
    trainer = make_trainer(tmp_path, PAIRS, **options)
    expected, found = trainer.predict(PAIRS), trainer.predict(PAIRS.to_iterable_dataset(num_shards=3))
    labels = [[ids[ids != -100].tolist() for ids in of.label_ids] for of in (expected, found)]
    assert labels[0] == labels[1]
    assert len({*map(tuple, labels[0])}) > 1, "all rows are alike: the test shows nothing"


def test_options_of_loaders_are_put_back():
    options = {"drop_last": True, "num_workers": 2, "persistent_workers": True, "prefetch_factor": 4}
    args = SimpleNamespace(**{f"dataloader_{name}": value for name, value in options.items()})
    before = dict(vars(args))
    with loading_all_rows(args, counts=True):
        assert set(vars(args).values()) == {0, None}  # False equals 0
    assert vars(args) == before
    with loading_all_rows(args, counts=False):
        assert vars(args) == {**before, "dataloader_drop_last": False, "dataloader_persistent_workers": False}
    assert vars(args) == before
