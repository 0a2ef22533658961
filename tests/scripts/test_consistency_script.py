import json
import sys

import pytest
from safetensors import SafetensorError

from tests.helpers.commands import adapter, launched
from trl_consistency import ConsistencyTrainer
from trl_consistency.cli import main as cli
from trl_consistency.scripts.consistency import run


def test_script_and_command_give_the_same_adapter(tmp_path, recipe):
    run(["--config", str(recipe), "--output_dir", str(tmp_path / "script")])
    cli(["consistency", "--config", str(recipe), "--output_dir", str(tmp_path / "command")])
    script, command = adapter(tmp_path / "script"), adapter(tmp_path / "command")
    assert script.keys() == command.keys()
    assert all((script[name] == command[name]).all() for name in script)
    assert any(script[name].abs().max() > 0 for name in script if "lora_B" in name)


@pytest.mark.slow
def test_two_processes_through_accelerate_launch(tmp_path, recipe):
    """The README's launch command; the accelerate config that really starts two processes."""
    run(["--config", str(recipe), "--output_dir", str(tmp_path / "one")])
    launcher = [sys.executable, "-m", "accelerate.commands.launch"]
    config = ["--config_file", "recipes/accelerate_configs/multi_cpu.yaml"]
    script = ["-m", "trl_consistency.scripts.consistency", "--config", str(recipe)]
    launched(
        [*launcher, *config, *script, "--output_dir", str(tmp_path / "two"), "--per_device_train_batch_size", "4"]
    )
    one, two = adapter(tmp_path / "one"), adapter(tmp_path / "two")
    assert max((one[name] - two[name]).abs().max().item() for name in one) < 1e-5


def test_unknown_accelerate_config(capsys):
    with pytest.raises(SystemExit):
        cli(["consistency", "--accelerate_config", "many_gpu"])
    assert (
        "neither a file nor one of: fsdp2, multi_cpu, multi_gpu, single_gpu, zero2, zero3" in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--dataset_name", "none.txt"], None),
        (["--dataset_train_split", "trian"], "`dataset_train_split` is `trian`, but the data set has only: train"),
        (
            ["--eval_strategy", "steps", "--eval_steps", "1"],
            "`dataset_test_split` is `test`, but the data set has only",
        ),
        (["--output_dir", "/dev/null/out"], "`output_dir` `/dev/null/out` is not writable"),
        (["--dataset_name", "nope.jsonl"], "There is no file nope.jsonl"),
        (["--resume_from_checkpoint", "true"], "there is no checkpoint in"),
        (["--use_peft", "false", "--load_in_4bit"], "`load_in_4bit` needs `use_peft: true`"),
        (["--use_liger_kernel"], "`use_liger_kernel` needs the package `liger_kernel`"),
    ],
)
def test_errors_end_with_one_message(tmp_path, recipe, flags, reason):
    if reason is None:
        (tmp_path / "pairs.txt").touch()
        flags, reason = ["--dataset_name", str(tmp_path / "pairs.txt")], "a file must end in .jsonl"
    with pytest.raises(SystemExit) as error:
        run(["--config", str(recipe), "--output_dir", str(tmp_path / "out"), *flags])
    assert str(error.value.code).startswith("error: ")
    assert reason in str(error.value.code)


def test_faulty_pairs_end_with_one_message(tmp_path, recipe):
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"clean_prompt": " ", "perturbed_prompt": "x"}))
    with pytest.raises(SystemExit, match=r"row 0: `clean_prompt` is empty or blank"):
        run(["--config", str(recipe), "--output_dir", str(tmp_path / "out")])


@pytest.mark.parametrize(
    ("content", "reason"), [("", "is empty"), ('{"clean_prompt": "a",\n{', "cannot be read: .*JSON")]
)
def test_files_that_cannot_be_read(tmp_path, recipe, content, reason):
    (tmp_path / "pairs.jsonl").write_text(content)
    with pytest.raises(SystemExit, match=f"error: {tmp_path}/pairs.jsonl {reason}"):
        run(["--config", str(recipe), "--output_dir", str(tmp_path / "out")])


def test_file_in_a_mixture(tmp_path, recipe):
    recipe.write_text(
        recipe.read_text().replace(f"dataset_name: {tmp_path}/pairs.jsonl", "")
        + f"datasets: [{{path: {tmp_path}/pairs.jsonl}}]\ntest_split_size: 0.25\neval_on_start: true\n"
    )
    run(["--config", str(recipe), "--output_dir", str(tmp_path / "out")])
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()


def test_missing_bitsandbytes(tmp_path, recipe, monkeypatch):
    monkeypatch.setattr("trl_consistency.trainer.run.checks.find_spec", lambda name: None)
    with pytest.raises(SystemExit, match="`load_in_4bit` needs the package `bitsandbytes`"):
        run(["--config", str(recipe), "--output_dir", str(tmp_path / "out"), "--load_in_4bit"])


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as error:
        cli(["--help"])
    assert error.value.code == 0
    assert "consistency" in capsys.readouterr().out


def test_importing_the_package_is_light():
    """`import trl_consistency` and `trl-consistency --help` must not import torch."""
    code = "import sys, trl_consistency, trl_consistency.cli; assert not {'torch', 'trl', 'transformers'} & set(sys.modules)"
    launched([sys.executable, "-c", code])


def test_push_to_hub(recipe, tmp_path, hub):
    """A whole model: an adapter of a local one could not be loaded by anybody else."""
    trainer = run(
        [
            "--config",
            str(recipe),
            "--output_dir",
            str(tmp_path / "out"),
            "--use_peft",
            "false",
            "--push_to_hub",
            "true",
        ]
    )
    assert trainer.state.global_step == 2
    files = hub.files("me/out")
    assert {"README.md", "model.safetensors", "config.json", "tokenizer.json"} <= set(files)
    assert files["README.md"] == (tmp_path / "out" / "README.md").read_bytes()
    assert not any(name.endswith(".bin") for name in files)


def test_a_disk_that_fills_before_the_model_is_saved(tmp_path, recipe, monkeypatch):
    def fill(self, *args, **kwargs):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(ConsistencyTrainer, "save_model", fill)
    with pytest.raises(SystemExit, match=r"`output_dir` .* cannot be written \(.*No space left on device"):
        run(["--config", str(recipe), "--output_dir", str(tmp_path / "out"), "--save_strategy", "no"])
