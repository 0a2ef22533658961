"""A dry run of `make gpu`: its pieces at a tiny size on the CPU."""

import pytest

from tests.benchmarks import gpu
from tests.benchmarks.gpu_pieces import MODELS, PIECES, Scale


DRY = Scale("cpu")


@pytest.mark.parametrize(
    "name", ["head", "flex", "vllm", "qwen3-4b-act-bf16", "llama-3.1-8b-bct-nf4", "qwen3-4b-opct-bf16"]
)
def test_pieces_at_a_tiny_size(name):
    figures = PIECES[name](DRY)
    assert figures
    for what, figure in figures.items():
        if "seconds" in what:
            assert figure > 0
    if "-opct-" in name:
        assert {"ours, seconds", "TRL, seconds", "ours, share of the floor"} <= figures.keys()
    if name == "flex":
        assert figures["256 tokens, relative difference of losses"] < 1e-5
        assert "256 tokens, times as fast with FlexAttention" in figures


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in PIECES if name.startswith((*MODELS, "smollm2", "tests"))])
def test_all_pieces_at_a_tiny_size(name):
    assert PIECES[name](DRY)


def test_a_killed_run_goes_on_and_failures_are_run_again(tmp_path, monkeypatch, capsys):
    answers = iter([{"device": "A", "figures": {"seconds": 1.0}}, {"failed": "out of memory"}])
    monkeypatch.setattr(gpu, "measure", lambda name, scale: next(answers))
    arguments = ["--cpu", "--only", "head", "flex", "--output_dir", str(tmp_path)]
    with pytest.raises(SystemExit, match="Failed: flex"):
        gpu.main(arguments)
    assert "flex failed: out of memory" in capsys.readouterr().out
    answers = iter([{"device": "A", "figures": {"seconds": 2.0}}])
    gpu.main(arguments)
    assert (
        f"head: measured already. To measure it again, delete {tmp_path / 'dry_run' / 'head.json'}."
        in capsys.readouterr().out
    )
    gpu.main(["--list", *arguments])
    assert capsys.readouterr().out.count("done") == 2


@pytest.mark.long
def test_a_piece_runs_in_a_process_of_its_own():
    found = gpu.measure("vllm", DRY)
    assert found["device"] == "CPU (dry run)"


def test_without_a_device_the_command_says_so():
    if gpu.machine() and __import__("torch").cuda.is_available():
        pytest.skip("there is a device")
    with pytest.raises(SystemExit, match=r"no GPU here\. `\.venv/bin/python -m tests\.benchmarks\.gpu --cpu`"):
        gpu.main([])
