import pytest
import torch
from peft import LoraConfig
from transformers import TrainerCallback

from tests.helpers.by_method import trainer_of
from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer
from trl_consistency import ConsistencyError, ConsistencyTrainer
from trl_consistency.evaluation.dose import measure_dose
from trl_consistency.evaluation.grading.names import possible_answers
from trl_consistency.trainer.callbacks import dose


class Tracker(TrainerCallback):
    """Keeps what a tracker gets."""

    def __init__(self):
        self.logged = []

    def on_log(self, args, state, control, logs, **kwargs):
        self.logged.append((state.global_step, dict(logs)))


def trained(tmp_path, kind, lora=False, resume=None, model=None, completion=False, ref_model=None, **options):
    tracker = Tracker()
    trainer = trainer_of(
        kind,
        tmp_path,
        model or make_model(),
        {"max_steps": 2, "logging_steps": 1, "anchor_ratio": 0.5} | options,
        train_dataset=make_pairs(8, completion=completion),
        processing_class=make_tokenizer(),
        callbacks=[tracker],
        peft_config=LoraConfig(r=4, target_modules="all-linear", lora_dropout=0.1) if lora else None,
        **({} if ref_model is None else {"ref_model": ref_model}),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer, tracker.logged


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "lora"), [("bct", False), ("bct", True), ("kl", True), ("act", False), ("opct", True)]
)
def test_dose_is_logged_once_before_the_first_step(tmp_path, kind, lora):
    """And the training goes as it would have gone without."""
    plain, logged = trained(tmp_path / "plain", kind, lora)
    assert not any("dose/kl" in logs for _, logs in logged)
    checked, logged = trained(tmp_path / "checked", kind, lora, dose_check=True)
    doses = [(step, logs) for step, logs in logged if "dose/kl" in logs]
    assert doses[0] == logged[0]
    ((step, dose),) = doses
    assert step == 0
    assert dose["dose/pairs"] == 8  # not the anchors
    assert dose["dose/kl"] > 0
    assert 0 <= dose["dose/same_words"] <= 1
    assert dose in [{key: log[key] for key in dose if key in log} for log in checked.state.log_history]
    losses = [[log["loss"] for log in trainer.state.log_history if "loss" in log] for trainer in (plain, checked)]
    assert losses[0] == losses[1]
    weights = [dict(trainer.model.named_parameters()) for trainer in (plain, checked)]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])


def test_resumed_run_is_past_the_check(tmp_path):
    trained(tmp_path, "act", dose_check=True, save_strategy="steps", save_steps=1)
    _, logged = trained(tmp_path, "act", dose_check=True, resume=str(tmp_path / "checkpoint-1"))
    assert not any("dose/kl" in logs for _, logs in logged)


def test_warning(tmp_path, caplog):
    model = make_model()
    torch.nn.init.zeros_(model.lm_head.weight)  # whatever it reads, it says the same
    trained(tmp_path, "act", model=model, dose_check=True)
    lines = [record.getMessage() for record in caplog.records if "dose_check" in record.getMessage()]
    cut, little = lines
    assert "16 of 16 answer(s) reached `max_completion_length`" in cut
    assert "nothing to train" in little


@pytest.mark.parametrize("kind", ["bct", "kl", "opct"])
def test_another_teacher_is_not_warned_of(tmp_path, caplog, kind):
    """Given answers, or another model's, may be good, and differ from what this model says to either prompt."""
    model = make_model()
    torch.nn.init.zeros_(model.lm_head.weight)
    given = {"ref_model": make_model(seed=1)} if kind == "opct" else {"completion": True}
    trained(tmp_path, kind, model=model, dose_check=True, **given)
    lines = [record.getMessage() for record in caplog.records if "dose_check" in record.getMessage()]
    assert ["16 of 16 answer(s) reached `max_completion_length`" in line for line in lines] == [True]


def test_anchors_alone_are_refused(tmp_path):
    """Nothing was measured, and nothing said of it."""
    anchors = make_pairs(4).map(lambda row: {"perturbed_prompt": row["clean_prompt"]})
    args = make_config(tmp_path, dose_check=True)
    with pytest.raises(ConsistencyError, match="`dose_check`: there is no pair to measure it on"):
        ConsistencyTrainer(make_model(), args, train_dataset=anchors, processing_class=make_tokenizer())


@pytest.mark.long
@pytest.mark.parametrize("streams", [False, True])
def test_possible_answers_are_those_of_all_pairs(tmp_path, monkeypatch, streams):
    """As for `lint --dose`: a reply that names the answer of a pair outside the sample was read as another answer."""
    answers = [f"City {row}" for row in range(70)]
    pairs = make_pairs(70).add_column("answer", answers).add_column("biased_answer", ["Lyon"] * 70)
    options = {"max_steps": 1, "dose_check": True, "method": "bct"}
    trainer = ConsistencyTrainer(
        make_model(),
        args=make_config(tmp_path, **options),
        train_dataset=pairs.to_iterable_dataset() if streams else pairs,
        processing_class=make_tokenizer(),
    )
    measured = []

    def measure(*args, answers_of, **kwargs):
        measured.append(set(possible_answers(answers_of)[None]))
        return measure_dose(*args, answers_of=answers_of, **kwargs)

    monkeypatch.setattr(dose, "measure_dose", measure)
    trainer.train()
    assert measured == [{"Lyon", *(answers[:64] if streams else answers)}]
