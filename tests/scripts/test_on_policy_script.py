import pytest

from tests.helpers.commands import adapter
from tests.helpers.evaluate_command import pair, write
from tests.helpers.vllm_stand_in import served  # noqa: F401
from trl_consistency.cli import main as cli
from trl_consistency.scripts.on_policy_consistency import run


@pytest.fixture
def on_policy_recipe(recipe):
    recipe.write_text(recipe.read_text().replace("temperature: 0.0", "temperature: 1.0"))
    return recipe


def test_script_and_command_give_the_same_adapter(tmp_path, on_policy_recipe):
    run(["--config", str(on_policy_recipe), "--output_dir", str(tmp_path / "script")])
    cli(["on-policy-consistency", "--config", str(on_policy_recipe), "--output_dir", str(tmp_path / "command")])
    script, command = adapter(tmp_path / "script"), adapter(tmp_path / "command")
    assert script.keys() == command.keys()
    assert all((script[name] == command[name]).all() for name in script)
    assert any(script[name].abs().max() > 0 for name in script if "lora_B" in name)


def test_faulty_options_end_with_one_message(tmp_path, on_policy_recipe, capsys):
    for flags, reason in (
        (["--method", "bct"], "unknown flag: `--method`. It is an option of `trl-consistency consistency`."),
        (["--temperature", "0"], "`temperature` must be at least 0.0001"),
        (["--num_generations", "3"], "do not divide into groups"),
        (["--loss_type", "kl"], "invalid choice"),
    ):
        with pytest.raises(SystemExit) as error:
            run(["--config", str(on_policy_recipe), "--output_dir", str(tmp_path / "out"), *flags])
        assert error.value.code == 2
        assert reason in capsys.readouterr().err


def test_reference_by_name(tmp_path, on_policy_recipe, model_dir):
    arguments = ["--config", str(on_policy_recipe), "--output_dir", str(tmp_path / "out")]
    trainer = run([*arguments, "--ref_model_name_or_path", str(model_dir)])
    assert trainer.rollout_loss.reference.model is not trainer.accelerator.unwrap_model(trainer.model)
    with pytest.raises(SystemExit, match=r"error: `anchor_dataset` .* is given, but `anchor_ratio` is 0"):
        run([*arguments, "--anchor_dataset_name", "embedded:organism"])


def test_faulty_data_end_with_one_message(tmp_path, on_policy_recipe):
    flags = ["--per_device_train_batch_size", "80", "--output_dir", str(tmp_path / "out")]
    with pytest.raises(SystemExit, match=r"error: `train_dataset` has 16 row\(s\), fewer than the 20 prompts"):
        run(["--config", str(on_policy_recipe), *flags])


def test_a_server_samples_rollouts_and_answers_the_guard(served, on_policy_recipe, tmp_path):  # noqa: F811
    held_out = tmp_path / "held_out"
    held_out.mkdir()
    write(held_out / "test.jsonl", [pair(number) for number in range(4)])
    command = ["on-policy-consistency", "--config", str(on_policy_recipe), "--output_dir", str(tmp_path / "out")]
    command += ["--use_peft", "--lora_target_modules", "all-linear", "--max_steps", "1", "--vllm_server_timeout", "5"]
    guard = ["--guard_dataset_name", str(held_out), "--guard_split", "test", "--guard_every", "1"]
    cli([*command, *guard, "--engine", served.url])
    temperatures = [body["temperature"] for path, body in served.requests if path == "/v1/completions"]
    assert temperatures == [0, 1, 0]
    with pytest.raises(SystemExit, match=r"`--engine` is http.*, and `--vllm_mode` is colocate: they disagree"):
        cli([*command, "--engine", served.url, "--vllm_mode", "colocate"])
