"""Which rows `evaluate` and `predict` measure, if a trainer has prepared them before."""

import pytest

from tests.helpers.models import make_pairs, make_tokenizer
from tests.helpers.paired import make_trainer


PAIRS = make_pairs()


def two_trainers(tmp_path, **options):
    """Two trainers of one model that render the same rows with different templates."""
    template = tmp_path / "other.jinja"
    template.write_text("{{ 'Q: ' }}" + make_tokenizer().chat_template)
    first = make_trainer(tmp_path / "first", PAIRS, eval_dataset=PAIRS, **options)
    return first, make_trainer(tmp_path / "second", PAIRS, chat_template_path=str(template), **options)


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


def test_own_sets_are_taken_as_they_are(tmp_path, monkeypatch):
    trainer = make_trainer(tmp_path, PAIRS, eval_dataset={"one": PAIRS, "two": PAIRS})
    monkeypatch.setattr(trainer, "_render", pytest.fail)
    trainer.evaluate(trainer.train_dataset)
    trainer.evaluate(trainer.eval_dataset)
    trainer.predict(trainer.eval_dataset["one"])
