"""What a schedule of lengths costs is the training's own."""

from tests.benchmarks import horizon


def test_making_the_model_is_no_part_of_a_training(monkeypatch, tmp_path, capsys):
    done = []
    monkeypatch.setattr(horizon, "resolve_model", done.append)
    monkeypatch.setattr(horizon, "train", lambda recipe, schedule, *_: done.append(schedule))
    monkeypatch.setattr(horizon, "measure_adapter", lambda *_: None)
    monkeypatch.setattr(horizon, "cells", lambda *_: {"Tokens": ["1", "2", "3"]})
    horizon.main(["embedded:organism", "--seeds", "1", "--output_dir", str(tmp_path)])
    assert done == ["embedded:organism", (), (2, 6, 200), (2, 16)]
    assert "| Tokens | 1" in capsys.readouterr().out
