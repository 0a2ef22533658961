import copy
import sys
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest
import torch

from tests.helpers.models import make_tokenizer
from tests.helpers.on_policy import END, answer, make_trainer, moved, naive_divergence, replay, uneven_pairs
from trl_consistency.data.highlights import token_texts
from trl_consistency.data.rendering import render_prompt
from trl_consistency.rollouts.table import print_rollouts, send_to_trackers


COLUMNS = ["step", "clean_prompt", "perturbed_prompt", "completion", "tokens", "divergence"]


def row(tokens, divergence, clean="Who?", perturbed="I say Bob. Who?", step=3):
    return dict(zip(COLUMNS, [step, clean, perturbed, "".join(tokens), tokens, divergence], strict=True))


@pytest.mark.parametrize("loss_type", ["divergence", "policy_gradient"])
def test_table_holds_the_divergence_of_each_token(tmp_path, loss_type):
    """Of every rollout of the step, by the student that made it; nothing where the token is masked."""
    pairs, tokenizer = uneven_pairs(), make_tokenizer()
    trainer = make_trainer(
        tmp_path, pairs, max_steps=1, per_device_train_batch_size=4, gradient_accumulation_steps=4,
        log_completions=True, num_completions_to_print=0, mask_truncated_completions=True, loss_type=loss_type,
    )  # fmt: skip
    reference = copy.deepcopy(trainer.model)
    student = copy.deepcopy(moved(trainer.model))
    replay(trainer).train()
    table = pq.read_table(tmp_path / "completions" / "completions_00001.parquet")
    assert table.column_names == COLUMNS
    rows = table.to_pylist()
    assert len(rows) == 16
    found = {(row["perturbed_prompt"], row["completion"]): row for row in rows}
    for pair in pairs:
        clean, perturbed = (render_prompt(tokenizer, pair[side]) for side in ("clean_prompt", "perturbed_prompt"))
        for number in range(2):
            ids = answer(perturbed, number)
            texts = tokenizer.batch_decode([clean, perturbed, ids], skip_special_tokens=True)
            logged = found[texts[1], texts[2]]
            assert logged["clean_prompt"] == texts[0]
            assert logged["step"] == 1
            assert logged["tokens"] == token_texts(ids, tokenizer)
            if ids[-1] != END:
                assert logged["divergence"] == [None] * len(ids)
                continue
            with torch.no_grad():
                p = student(torch.tensor([perturbed + ids])).logits[0, len(perturbed) - 1 : -1]
                q = reference(torch.tensor([clean + ids])).logits[0, len(clean) - 1 : -1]
            if loss_type == "divergence":
                expected = naive_divergence(p, q, 1.0, 1.0)
            else:
                gap = p.log_softmax(-1) - q.log_softmax(-1)
                expected = gap.gather(-1, torch.tensor(ids)[:, None])[:, 0]
            assert logged["divergence"] == pytest.approx(expected.tolist(), abs=2e-6)


def test_each_log_has_its_own_table(tmp_path):
    """The latest rollouts before it; those of an evaluation apart, by the set's name."""
    trainer = make_trainer(
        tmp_path, uneven_pairs(), max_steps=4, logging_steps=2, eval_strategy="steps", eval_steps=2,
        eval_dataset={"held_out": uneven_pairs(2)}, log_completions=True, num_completions_to_print=0,
        num_generations_eval=1,
    )  # fmt: skip
    trainer.train()
    trainer.predict(uneven_pairs(1))
    sizes = {path.name: pq.read_table(path).num_rows for path in (tmp_path / "completions").iterdir()}
    assert sizes == {
        "completions_00002.parquet": 8,
        "completions_00004.parquet": 8,
        "eval_held_out_completions_00002.parquet": 2,
        "eval_held_out_completions_00004.parquet": 2,
        "test_completions_00004.parquet": 1,
    }


def test_the_most_divergent_tokens_are_marked(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("FORCE_COLOR", "1")
    rows = [
        row(["Bob", " did", " it", "."], [4.0, 0.5, 0.001, None]),
        row(["[b]", "Ann"], [0.002, 0.001], perturbed="Who?"),
        row(["Thinking"], [None]),
    ]
    print_rollouts(rows, "completions, step 3")
    printed = capsys.readouterr().out
    assert "\x1b[1;37;41mBob\x1b[0m\x1b[30;43m did\x1b[0m it\x1b[2m.\x1b[0m" in printed
    for text in ("completions, step 3", "mean 1.500", "max  4.000", "at 'Bob'", "[b]Ann", "(anchor)", "not compared"):
        assert text in printed, text
    assert "at '[b]'" not in printed


@pytest.mark.parametrize(("number", "printed"), [(None, 4), (9, 4), (2, 2), (0, 0)])
def test_as_many_are_printed_as_are_asked_for(capsys, monkeypatch, number, printed):
    monkeypatch.setenv("COLUMNS", "120")
    rows = [row([f"answer{index}"], [0.1]) for index in range(4)]
    print_rollouts(rows, "completions", number)
    out = capsys.readouterr().out
    assert sum(f"answer{index} " in out for index in range(4)) == printed
    assert bool(out) == bool(printed)


@pytest.mark.parametrize("unique", [False, True])
def test_trackers_get_the_table(monkeypatch, unique):
    sent = {}

    def tracker(name, **attributes):
        def log(tables):
            sent[name] = tables["completions"]

        return SimpleNamespace(log=log, Table=lambda dataframe: dataframe, **attributes)

    monkeypatch.setitem(sys.modules, "trackio", tracker("trackio"))
    monkeypatch.setitem(sys.modules, "wandb", tracker("wandb", run=object()))
    rows = [row(["a"], [0.1]), row(["b"], [None]), row(["c"], [0.1], perturbed="Who?")]
    send_to_trackers(rows, "completions", ["wandb", "trackio", "tensorboard"], unique)
    for table in sent.values():
        assert list(table.columns) == COLUMNS
        assert list(table["completion"]) == (["a", "c"] if unique else ["a", "b", "c"])
    assert set(sent) == {"wandb", "trackio"}

    sent.clear()
    monkeypatch.setitem(sys.modules, "wandb", tracker("wandb", run=None))
    send_to_trackers(rows, "completions", ["wandb"], unique)
    assert not sent
