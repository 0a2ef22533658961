import re

import pytest

from trl_consistency.cli import main as cli
from trl_consistency.scripts.consistency import make_parser
from trl_consistency.scripts.option_check import USUAL_NAMES
from trl_consistency.scripts.recipes import recipes_dir


def parse(tmp_path, yaml="", *flags):
    config = tmp_path / "recipe.yaml"
    config.write_text(f"output_dir: {tmp_path}/out\nuse_cpu: true\nreport_to: none\n{yaml}\n")
    return make_parser(prog="consistency").parse_args_and_config(["--config", str(config), *flags])


def test_flags_override_the_file(tmp_path):
    script_args, training_args, model_args, _ = parse(
        tmp_path,
        "learning_rate: 1e-3\nmethod: bct\nmax_steps: 3\ndtype: bfloat16",
        "--max_steps",
        "5",
        "--dataset_name",
        "x",
    )
    assert training_args.learning_rate == 1e-3
    assert training_args.max_steps == 5
    assert training_args.method == ["bct"]
    assert model_args.dtype == "bfloat16"
    assert script_args.dataset_name == "x"


@pytest.mark.parametrize(
    ("line", "flags", "is_on"),
    [
        ("activation_checkpointing: true", ["--gradient_checkpointing", "false"], False),
        ("activation_checkpointing: true", ["--no_gradient_checkpointing"], False),
        ("activation_checkpointing: false", ["--gradient_checkpointing"], True),
        ("gradient_checkpointing: true", ["--activation_checkpointing", "false"], False),
        (
            "activation_checkpointing: true\ngradient_checkpointing: false",
            ["--activation_checkpointing", "false"],
            False,
        ),
        ("activation_checkpointing: true\ngradient_checkpointing: true", [], True),
        ("activation_checkpointing: null\ngradient_checkpointing: false", [], False),
    ],
)
def test_flags_override_an_option_by_its_other_name(tmp_path, line, flags, is_on):
    _, args, *_ = parse(tmp_path, line, *flags)
    assert args.activation_checkpointing is args.gradient_checkpointing is is_on


def test_types_of_yaml_values(tmp_path):
    _, args, model_args, _ = parse(
        tmp_path,
        "method: [bct]\nmethod_weights: [0.5]\nmax_length: null\nbf16: false\nlora_target_modules: [all-linear]\n"
        "generation_kwargs: {min_new_tokens: 2}\nlr_scheduler_kwargs: {num_cycles: 1}\neval_strategy: 'no'",
    )
    assert args.method_weights == [0.5]
    assert args.generation_kwargs == {"min_new_tokens": 2}
    assert args.max_length is None
    assert args.bf16 is False
    assert model_args.lora_target_modules == "all-linear"


def test_keys_that_are_merged(tmp_path):
    """YAML's `<<` was refused as a tag without a constructor. Keys beside it override those that it brings."""
    _, args, *_ = parse(tmp_path, "<<: {learning_rate: 0.5, max_steps: 3}\nmax_steps: 4")
    assert (args.learning_rate, args.max_steps) == (0.5, 4)


def test_a_single_text_is_a_list_of_one(tmp_path):
    """PEFT took each letter of `lm_head` for the end of a module's name, and trained the whole model."""
    _, args, model_args, _ = parse(
        tmp_path,
        "use_peft: true\nlora_modules_to_save: lm_head\nlora_target_parameters: experts.up\nlabel_names: labels",
    )
    assert model_args.lora_modules_to_save == ["lm_head"]
    assert model_args.lora_target_parameters == ["experts.up"]
    assert args.label_names == ["labels"]


def test_numbers_that_yaml_reads_as_text(tmp_path):
    """YAML 1.1 reads 1e-1, without a dot, as text: in a list, too."""
    _, args, *_ = parse(tmp_path, "method: [bct, act]\nlearning_rate: 1e-4\nmethod_weights: [1e-1, 1]")
    assert args.learning_rate == 1e-4
    assert args.method_weights == [0.1, 1]


def test_resume_may_be_true_or_a_folder(tmp_path):
    assert parse(tmp_path, "resume_from_checkpoint: true")[1].resume_from_checkpoint is True
    assert parse(tmp_path, "resume_from_checkpoint: out/checkpoint-3")[1].resume_from_checkpoint == "out/checkpoint-3"


def test_home(tmp_path, monkeypatch):
    """A shell knows `~` after a space alone, and not in a file: a folder of that name would be made here."""
    monkeypatch.setenv("HOME", "/home/me")
    script_args, args, model_args, mixture = parse(
        tmp_path,
        "anchor_dataset_name: ~/anchors\nlora_target_modules: [~/x]\ndatasets: [{path: ~/a, data_files: [~/b]}]",
        "--output_dir=~/out",
    )
    assert (args.output_dir, script_args.anchor_dataset_name) == ("/home/me/out", "/home/me/anchors")
    assert model_args.lora_target_modules == "/home/me/x"
    assert (mixture.datasets[0].path, mixture.datasets[0].data_files) == ("/home/me/a", ["/home/me/b"])


def test_config_with_an_equals_sign(tmp_path):
    (tmp_path / "recipe.yaml").write_text(f"output_dir: {tmp_path}/out\nuse_cpu: true\nmax_steps: 7\nreport_to: none")
    parsed = make_parser().parse_args_and_config([f"--config={tmp_path}/recipe.yaml"])
    assert parsed[1].max_steps == 7


FAULTY_YAML = {
    "unknown key": (
        "learning_rat: 1e-3",
        r"unknown key in .*recipe\.yaml: `learning_rat`\. Did you mean `learning_rate`",
    ),
    "another library's name": ("max_new_tokens: 8", "`max_new_tokens`. Did you mean `max_completion_length`"),
    "short name": ("lr: 1e-3", "`lr`. Did you mean `learning_rate`"),
    "hyphens": ("max-steps: 3", r"unknown key .*`max-steps`\. Did you mean `max_steps`"),
    "word for a number": ("learning_rate: fast", "`learning_rate` must be a number, got 'fast'"),
    "fraction for a whole number": ("max_steps: 1.5", "`max_steps` must be a whole number, got 1.5"),
    "list for a value": ("max_steps: [1, 2]", "`max_steps` must be a whole number"),
    "unquoted no": ("eval_strategy: no", "YAML reads an unquoted yes/no"),
    "number for text": ("run_name: 7", "`run_name` must be text or null, got 7. Quote it"),
    "null": ("learning_rate:", "`learning_rate` must be a number, got None"),
    "not a choice": ("overlong: cut", r"`overlong` must be one of error, drop, got 'cut'"),
    "unknown method": ("method: [btc]", "Unknown `method` `btc`"),
    "weights that do not match": ("method_weights: [1, 2]", r"has 2 value\(s\) for 1 method\(s\)"),
    "out of range": ("temperature: -1", "`temperature` must be at least 0"),
    "value of TRL's own check": ("eval_strategy: sometimes", "`eval_strategy` must be"),
    "key given twice": ("max_steps: 3\nmax_steps: 4", "the key `max_steps` is given twice"),
    "misspelt key of a mixture": (
        "datasets: [{pth: x, path: y}]",
        "unknown key under `datasets` in .*`pth`. Did you mean `path`",
    ),
    "mixture that is no list": ("datasets: pairs.jsonl", "`datasets` must be a list of mappings, each with a `path`"),
    "two names of one option": (
        "gradient_checkpointing: false\nactivation_checkpointing: true",
        "`gradient_checkpointing` and `activation_checkpointing` are one option, and differ",
    ),
    "key given twice in JSON": (
        """chat_template_kwargs: '{"think": true, "think": false}'""",
        "`chat_template_kwargs`: the key 'think' is given twice",
    ),
    "not YAML": ("a: [", "is not valid YAML"),
    "code": ("output_dir: !!python/object/apply:os.getcwd []", "is not valid YAML"),
}


def test_usual_names():
    """None is an option here, and each stands for one."""
    options = {name.removeprefix("--") for name in make_parser()._option_string_actions}
    assert not options & set(USUAL_NAMES)
    assert set(USUAL_NAMES.values()) <= options


@pytest.mark.parametrize("case", FAULTY_YAML)
def test_faulty_yaml(tmp_path, capsys, case):
    yaml, reason = FAULTY_YAML[case]
    with pytest.raises(SystemExit) as error:
        parse(tmp_path, yaml)
    assert error.value.code == 2
    message = capsys.readouterr().err
    assert re.search(reason, message), message
    assert "usage" not in message, "two hundred options would bury the message"


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (["--learning_rat", "1"], r"unknown flag: `--learning_rat`. Did you mean `--learning_rate`"),
        (["--num_generations", "4"], "It is an option of `trl-consistency on-policy-consistency`."),
        (["--max_step", "1"], "unknown flag: `--max_step`"),
        (["--max_steps", "many"], "`--max_steps` must be a whole number, got 'many'"),
        (["--overlong", "cut"], "invalid choice: 'cut'"),
        (
            ["--chat_template_kwargs", '{"think": true, "think": false}'],
            "`--chat_template_kwargs`: the key 'think' is given twice",
        ),
        (['--generation_kwargs={"min_p": NaN}'], "`--generation_kwargs`: NaN is not a number"),
        (["--dataset_name", "pairs\udcff.jsonl"], "`pairs\\udcff.jsonl` is not valid UTF-8: rename it"),
    ],
)
def test_faulty_flags(tmp_path, capsys, flags, reason):
    with pytest.raises(SystemExit):
        parse(tmp_path, "", *flags)
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "reason"), [(["--config"], "needs a file"), (["--config", "gone.yaml"], "cannot read")]
)
def test_config_that_is_not_there(capsys, args, reason):
    with pytest.raises(SystemExit):
        make_parser().parse_args_and_config(args)
    assert reason in capsys.readouterr().err


def test_config_that_is_not_a_mapping(tmp_path, capsys):
    (tmp_path / "list.yaml").write_text("- a\n- b")
    with pytest.raises(SystemExit):
        make_parser().parse_args_and_config(["--config", str(tmp_path / "list.yaml")])
    assert "must hold `key: value` lines" in capsys.readouterr().err


def test_recipe_of_the_package_is_named(tmp_path, monkeypatch, capsys):
    """Outside a checkout there is no folder `recipes`."""
    monkeypatch.chdir(tmp_path)
    own = recipes_dir() / "quickstart" / "bct.yaml"
    for name in ("recipes/quickstart/bct.yaml", "quickstart/bct.yaml"):
        with pytest.raises(SystemExit):
            cli(["consistency", "--config", name])
        assert (
            f"cannot read `--config` {name}: No such file or directory. The package has {own}."
            in capsys.readouterr().err
        )
    (tmp_path / "large.yaml").write_text("#" * 1_000_001)  # it is there, and too long for a recipe
    for name in ("gone.yaml", str(tmp_path / "large.yaml")):
        with pytest.raises(SystemExit):
            cli(["consistency", "--config", name])
        assert "The package has" not in capsys.readouterr().err
