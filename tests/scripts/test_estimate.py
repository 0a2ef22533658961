"""`trl-consistency estimate`: parameters against real models, and what it prints and refuses."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import yaml
from peft import get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from trl import ModelConfig, get_peft_config

from tests.helpers.architectures import make
from tests.helpers.models import make_model
from trl_consistency.cli import main as cli
from trl_consistency.config.consistency_config import ConsistencyConfig
from trl_consistency.config.on_policy_consistency_config import OnPolicyConsistencyConfig
from trl_consistency.costs.memory import Memory, largest_batch, measure_memory
from trl_consistency.costs.setup import Setup, make_outline, quantized_weights
from trl_consistency.models.quantization import packed_weights
from trl_consistency.scripts.estimate import EstimateArguments
from trl_consistency.scripts.estimate_view import describe
from trl_consistency.scripts.recipes import recipes_dir


pytestmark = pytest.mark.long


SETUP = Setup(("bct",), 32, 8, 4, use_cpu=True)


@pytest.fixture
def config_dir(tmp_path):
    """A folder with a config and no weights."""
    return save_config(make_model(), tmp_path / "model")


def save_config(model, folder):
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)
    return folder


def estimate(capsys, *words):
    cli(["estimate", *map(str, words)])
    return capsys.readouterr().out


def lora(**options):
    return get_peft_config(ModelConfig(use_peft=True, lora_target_modules=["all-linear"], **options))


def outline_of(folder, peft_config=None):
    return make_outline(str(folder), AutoConfig.from_pretrained(folder), peft_config)


@pytest.mark.parametrize("kind", ["qwen3", "llama"])
def test_parameters_are_those_of_a_real_model(tmp_path, kind):
    model = make_model(kind)
    save_config(model, tmp_path)
    for adapter in (None, lora(), lora(lora_r=4)):
        real = model if adapter is None else get_peft_model(make_model(kind), adapter)
        found = measure_memory(outline_of(tmp_path, adapter and lora(lora_r=adapter.r)), SETUP)
        assert found.parameters == sum(weight.numel() for weight in real.parameters())
        assert found.trained == sum(weight.numel() for weight in real.parameters() if weight.requires_grad)
        assert found.weights + found.adapter == 4 * found.parameters
        assert found.gradients == 4 * found.trained
        assert found.optimizer == 8 * found.trained


@pytest.mark.parametrize("nested", [False, True])
def test_quantized_weights_take_what_bitsandbytes_takes(tmp_path, nested):
    model = make_model()
    save_config(model, tmp_path)
    model.save_pretrained(tmp_path)
    nf4 = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=nested)
    real = AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=nf4, dtype=torch.bfloat16)
    packed = packed_weights(real)
    outline = outline_of(tmp_path, lora())
    names = {name.removeprefix("base_model.model.").replace(".base_layer", "") for name in quantized_weights(outline)}
    assert names == packed.keys()
    expected = sum(weight.nbytes for weight in real.parameters())
    for scales in packed.values():
        # The last of nested scales is an offset, a number for each weight, which is not counted.
        expected += sum(of.nbytes for of in scales[: 2 if nested else 1])
    setup = Setup(("bct",), 32, 8, 4, load_in_4bit=True, use_bnb_nested_quant=nested, dtype="bfloat16", bf16=True)
    assert measure_memory(outline, setup).weights == expected


@pytest.mark.parametrize("method", ["bct", "kl", "act", "mlpct", "opct"])
def test_checkpointing_and_smaller_batches_take_less(config_dir, method):
    def total(**options):
        setup = Setup(
            **{"method": (method,), "max_length": 256, "max_completion_length": 32, "use_cpu": True, **options}
        )
        return measure_memory(outline_of(config_dir, lora()), setup).total

    kept = total(per_device_train_batch_size=16, gradient_checkpointing=False)
    assert total(per_device_train_batch_size=16) < kept
    assert total(per_device_train_batch_size=8, gradient_checkpointing=False) < 0.7 * kept


def test_the_largest_batch_that_is_looked_for_is_said_to_be_a_bound(config_dir, capsys):
    """1024 rows are no multiple of three rollouts."""
    words = (
        "--max_length",
        16,
        "--max_completion_length",
        4,
        "--method",
        "opct",
        "--memory",
        10_000,
        "--use_cpu",
        "true",
    )
    groups = ("--num_generations", 3, "--per_device_train_batch_size", 3)
    expected = "largest batch in 10000 GiB: 1,023 rollouts or more (`--per_device_train_batch_size`)\n"
    assert expected in estimate(capsys, config_dir, *words, *groups)
    found = json.loads(estimate(capsys, config_dir, *words, *groups, "--json"))
    assert (found["largest_batch"], found["larger_may_fit"]) == (1023, True)


def test_the_largest_batch_fits_and_the_next_does_not(config_dir):
    outline = outline_of(config_dir, lora())
    limit = 20 << 20
    batch = largest_batch(outline, SETUP, limit)
    assert measure_memory(outline, SETUP.with_batch(batch)).total <= limit
    assert measure_memory(outline, SETUP.with_batch(batch + 1)).total > limit
    assert largest_batch(outline, SETUP, 1000) == 0
    for rows in (1, batch, batch + 1, 3 * batch):
        setup = SETUP.with_batch(rows)
        assert largest_batch(outline, setup, limit, measure_memory(outline, setup)) == batch
        assert largest_batch(outline, setup, 1000, measure_memory(outline, setup)) == 0


def test_many_long_rows_that_share_nothing_are_counted_without_a_mask(config_dir):
    """The trainer leaves the mask out there; nothing of the tensors, which have no content here, decides it."""
    setup = Setup(("opct",), 4096, 64, 8, share_prefix=False, use_cpu=True)
    assert measure_memory(outline_of(config_dir, lora()), setup).total > 0


def test_rollouts_that_are_sampled_in_parts_take_less(config_dir):
    setup = Setup(("opct",), 128, 64, 8, gradient_accumulation_steps=8)
    of = {
        size: measure_memory(outline_of(config_dir, lora()), replace(setup, rollout_batch_size=size))
        for size in (None, 8, 64, 100)
    }
    assert of[8].cache == of[None].cache // 8 > 0
    assert of[8].sampling < of[None].sampling / 6
    assert of[64] == of[100] == of[None]


def test_a_recipe_may_have_options_of_answers_for_its_metrics_alone(config_dir, capsys):
    """It was refused, though the option is the recipe's."""
    for method in ((), ("--method", "bct")):
        words = ("--recipe", recipes_dir() / "quickstart" / "act.yaml", "--max_length", 64, *method, "--json")
        with pytest.warns(UserWarning, match="`log_consistency_metrics`"):
            setup = json.loads(estimate(capsys, "--model_name_or_path", config_dir, *words))["setup"]
        assert setup["target_batch_size"] == (64 if method else 32)


def test_json(capsys, config_dir):
    words = ("--max_length", 64, "--max_completion_length", 16, "--use_peft", "--memory", 0.02, "--tflops", 0.01)
    found = json.loads(estimate(capsys, config_dir / "config.json", *words, "--json"))
    assert found["memory"]["total"] > found["memory"]["weights"]
    assert found["largest_batch"] > 8
    needed = sum(found["operations"][part] for part in ("reference", "forward", "backward", "head"))
    assert found["seconds"] == pytest.approx(needed / (0.01e12 * 0.4))


def test_operations_are_those_of_the_step_that_is_printed(capsys, config_dir):
    """In the object, they were those of a micro-batch."""
    words = ("--max_length", 64, "--max_completion_length", 16, "--use_peft", "--tflops", 0.01, "--use_cpu", "true")
    one = json.loads(estimate(capsys, config_dir, *words, "--json"))
    words = (*words, "--gradient_accumulation_steps", 4)
    found = json.loads(estimate(capsys, config_dir, *words, "--json"))
    assert found["operations"] == {name: 4 * of for name, of in one["operations"].items()}
    assert found["seconds"] == pytest.approx(4 * one["seconds"])
    shown = estimate(capsys, config_dir, *words)
    assert f"A step needs {found['operations']['step'] / 1e12:.3g} TFLOP.\n" in shown
    assert f"It takes {found['seconds']:.3g} s at 0.4 (`--utilisation`) of 0.01 TFLOP/s.\n" in shown


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_counts_blocks_on_a_terminal(capsys, config_dir, monkeypatch, is_terminal):
    """In a file, each of its updates would be one more line."""
    options = (
        "--max_length",
        64,
        "--max_completion_length",
        16,
        "--use_peft",
        "--use_cpu",
        "--gradient_accumulation_steps",
        4,
    )
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    cli(["estimate", str(config_dir), "--method", "bct", *map(str, options)])
    shown = capsys.readouterr().err
    # Two micro-batches of a model of two blocks; the others are like the second. And the prompts and one token of targets.
    assert ("8 blocks" in shown.split("Tracing a training step (no weights are loaded): ")[-1]) is is_terminal
    assert ("Tracing" in shown) is is_terminal


OPCT = ("--method", "opct", "--max_completion_length", 16, "--use_peft")


def test_text(capsys, config_dir):
    shown = estimate(capsys, config_dir, *OPCT, "--max_length", 64, "--memory", 0.02)
    for line in ("weights", "reference", "rollouts", "while sampling", "largest batch in 0.02 GiB:", "TFLOP"):
        assert line in shown
    assert "in all" not in shown
    assert "give 1 to 2 GiB less than the device has" in shown
    pairs = estimate(capsys, config_dir, "--max_length", 64, "--method", "act")
    assert "in all" in pairs
    for line in ("while", "rollouts", "targets", "less than the device has"):
        assert line not in pairs


@pytest.mark.parametrize(("sampled", "peak"), [("1", "training"), ("64", "sampling")])
def test_the_larger_phase_is_the_peak(capsys, config_dir, sampled, peak):
    words = (*OPCT, "--max_length", 512, "--gradient_accumulation_steps", 64, "--num_generations", 1)
    words += ("--rollout_batch_size", sampled) if sampled == "1" else ()
    memory = json.loads(estimate(capsys, config_dir, *words, "--json"))["memory"]
    held = sum(memory[name] for name in ("weights", "reference", "adapter", "optimizer"))
    assert memory["while_sampling"] == held + memory["sampling"]
    assert memory["while_training"] == held + memory["gradients"] + memory["activations"]
    assert memory["total"] == memory[f"while_{peak}"] == max(memory["while_sampling"], memory["while_training"])
    shown = estimate(capsys, config_dir, *words)
    assert [line.split()[1] for line in shown.splitlines() if "the peak: opct, 8 rollouts of 512 tokens" in line] == [
        peak
    ]
    assert f"while sampling; {memory['cache'] / 2**30:.2f} GiB of it is the KV cache" in shown


def test_prompts_alone_have_no_phase_of_sampling(capsys, config_dir):
    memory = json.loads(estimate(capsys, config_dir, "--max_length", 64, "--method", "act", "--json"))["memory"]
    assert memory["while_sampling"] is None
    assert memory["while_training"] == memory["total"]


@pytest.mark.parametrize("method", ["bct", "kl"])
def test_making_targets_is_a_phase(capsys, config_dir, method):
    """It took more than the step, and was not counted: `target_batch_size` answers are sampled at a time."""
    words = ("--method", method, "--max_length", 512, "--max_completion_length", 64, "--use_peft")
    words += ("--per_device_train_batch_size", 1)

    def found(*more):
        return json.loads(estimate(capsys, config_dir, *words, *more, "--json"))

    memory = found()["memory"]
    assert memory["total"] == memory["while_sampling"] > memory["while_training"]
    assert memory["while_sampling"] == memory["weights"] + memory["adapter"] + memory["sampling"]
    fewer = found("--target_batch_size", 1)["memory"]
    assert fewer["cache"] * 32 == memory["cache"]
    assert fewer["total"] == fewer["while_training"] == memory["while_training"]
    limit = (memory["while_training"] + memory["total"]) / 2 / 2**30
    assert found("--memory", limit)["largest_batch"] > 0, "it is that of the step"
    shown = estimate(capsys, config_dir, *words, "--memory", limit)
    assert "targets " in shown
    assert "of 32 targets at a time, before training" in shown
    assert f"Making targets takes more than {limit:g} GiB: lower `--target_batch_size`" in shown


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ((), ["q_proj", "v_proj"]),
        (("--lora_target_modules", "k_proj"), ["k_proj"]),
        (
            ("--lora_target_modules", "all-linear"),
            ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"],
        ),
    ],
)
def test_the_adapter_is_named(capsys, config_dir, given, names):
    """Without named layers, PEFT chooses few of them. The recipes name all."""
    words = ("--max_length", 64, "--max_completion_length", 16, "--use_peft", "--lora_r", 4, *given)
    assert f"LoRA, r = 4, on {', '.join(names)}\n" in estimate(capsys, config_dir, *words)
    setup = json.loads(estimate(capsys, config_dir, *words, "--json"))["setup"]
    assert setup["lora_target_modules"] == names
    assert (setup["model_name_or_path"], setup["model_type"]) == (str(config_dir), "qwen3")
    assert (setup["use_peft"], setup["lora_r"]) == (True, 4)


def test_without_an_adapter_none_is_named(capsys, config_dir):
    words = ("--max_length", 64, "--max_completion_length", 16)
    assert "none: all weights are trained" in estimate(capsys, config_dir, *words)
    setup = json.loads(estimate(capsys, config_dir, *words, "--json"))["setup"]
    assert (setup["use_peft"], setup["lora_r"], setup["lora_target_modules"]) == (False, None, None)


@pytest.mark.parametrize(
    ("given", "tries"),
    [
        ((), "`--use_peft`, `--dtype bfloat16`, a lower `--max_length`"),
        (("--use_peft",), "`--dtype bfloat16`, `--load_in_4bit`, a lower `--max_length`"),
        (
            ("--use_peft", "--load_in_4bit", "--gradient_checkpointing", "false"),
            "`--dtype bfloat16`, `--gradient_checkpointing true`, a lower `--max_length`",
        ),
        (
            ("--use_peft", "--load_in_4bit", "--dtype", "bfloat16", "--method", "opct"),
            "a lower `--num_generations`, a lower `--max_length`",
        ),
        (("--use_peft", "--load_in_4bit", "--dtype", "bfloat16"), "a lower `--max_length`"),
    ],
)
def test_what_to_try_if_no_batch_fits(capsys, config_dir, given, tries):
    words = ("--max_length", 64, "--max_completion_length", 16, "--memory", 0.0001, *given)
    assert f"largest batch in 0.0001 GiB: none fits. Try {tries}.\n" in estimate(capsys, config_dir, *words)


def test_large_numbers_have_no_exponents(capsys, config_dir):
    shown = {"setup": {"dtype": "float32"}, "not_counted": "", "seconds": 178.96}
    shown["memory"] = dict.fromkeys(Memory.__dataclass_fields__, 1)
    shown["operations"] = {"step": 70_812e12, "sampling": 22_600e12}
    text = describe(EstimateArguments("model", 1024, method=["opct"], tflops=989), shown)
    assert "A step needs 70,812 TFLOP, and sampling its rollouts 22,600 more.\n" in text
    assert (
        "It takes 179 s at 0.4 (`--utilisation`) of 989 TFLOP/s. This is without sampling, which may take longer.\n"
        in text
    )


def test_defaults_are_the_trainers():
    for config in (ConsistencyConfig, OnPolicyConsistencyConfig, ModelConfig):
        shared = config.__dataclass_fields__.keys() & EstimateArguments.__dataclass_fields__.keys()
        own = {"model_name_or_path", "model_revision", "max_length", "bf16", "method", "optim"}
        for name in shared - own:
            assert getattr(EstimateArguments, name) == getattr(config, name), name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max_length", "100"], "leaves no prompt"),
        (["--max_length", "1024", "--load_in_4bit"], "`--load_in_4bit` needs `--use_peft true`"),
        (["--max_length", "0"], "`--max_length` must be at least 1"),
        (["--max_length", "64", "--layers", "1", "--max_completion_length", "8"], "`--layers` is for act"),
        (
            ["--max_length", "64", "--method", "opct", "--max_completion_length", "8", "--num_generations", "3"],
            "which do not divide",
        ),
        (["--lora_r", "64"], "`--lora_r` is set without `--use_peft`, so that all weights would be trained"),
        (["--lora_target_modules", "q_proj"], "`--lora_target_modules` is set without `--use_peft`"),
        (["--use_bnb_nested_quant", "--use_peft"], "`--use_bnb_nested_quant` is set without `--load_in_4bit`"),
        (["--utilisation", "0.9"], "`--utilisation` is given, but no seconds are asked for: give `--tflops`"),
        (["--num_generations", "8"], "`--num_generations` is given, but it is for opct, and `--method` is bct"),
        (["--share_prefix", "false"], "`--share_prefix` is given, but it is for opct"),
        (
            ["--method", "act", "--max_completion_length", "8"],
            "`--max_completion_length` is given, but act compares prompts alone",
        ),
        (["--model_revision", "main"], "is not on the Hub, and has no revisions"),
        (["--rollout_batch_size", "8"], "`--rollout_batch_size` is given, but it is for opct"),
    ],
)
def test_faulty_options_are_refused_in_one_line(config_dir, words, message):
    with pytest.raises(SystemExit) as refusal:
        cli(["estimate", str(config_dir), *([] if "--max_length" in words else ["--max_length", "1024"]), *words])
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_rollouts_may_go_beyond_the_context(config_dir, capsys):
    """As in training: OPCT only warns of them."""
    context = AutoConfig.from_pretrained(config_dir).max_position_embeddings
    words = ["--max_length", context + 8, "--max_completion_length", 16, "--num_generations", 2]
    assert "GiB" in estimate(capsys, config_dir, "--method", "opct", "--per_device_train_batch_size", 2, *words)
    with pytest.raises(SystemExit, match="more than the model's context"):
        cli(["estimate", str(config_dir), "--method", "bct", "--max_length", str(context + 8)])
    with pytest.raises(SystemExit, match=f"a prompt of {context + 1} tokens, more than the model's context"):
        estimate(capsys, config_dir, "--method", "opct", "--max_length", context + 17, "--max_completion_length", 16)


def test_a_missing_config_is_named():
    with pytest.raises(SystemExit, match="There is no file"):
        cli(["estimate", "nothing.json", "--max_length", "1024"])


def test_flash_attention_is_counted_as_sdpa(config_dir, capsys):
    """Its package was asked for, and nothing is run here."""
    words = ("--max_length", 64, "--max_completion_length", 16, "--use_peft", "--json")
    with pytest.warns(UserWarning, match="`attn_implementation` is flash_attention_2, which is counted as `sdpa`"):
        found = json.loads(estimate(capsys, config_dir, *words, "--attn_implementation", "flash_attention_2"))
    assert found == json.loads(estimate(capsys, config_dir, *words))


def test_no_weights_are_made(config_dir, monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", None)
    outline = outline_of(config_dir)
    measure_memory(outline, SETUP)
    assert {weight.device for weight in outline.parameters()} == {torch.device("meta")}


@pytest.mark.parametrize(
    "recipe", ["bct/sycophancy_lora", "act/jailbreak_lora", "bct_act/sycophancy_lora", "opct/sycophancy_qlora"]
)
def test_a_recipe_is_read_as_its_training_reads_it(config_dir, capsys, recipe):
    """The setup has the recipe's options, a flag wins, and options that do not decide the cost are no error."""
    config = config_dir / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_position_embeddings": 8192}))
    path = recipes_dir() / "qwen3-4b-instruct" / f"{recipe}.yaml"
    words = ["--model_name_or_path", config_dir, "--recipe", path, "--per_device_train_batch_size", 8, "--json"]
    setup = json.loads(estimate(capsys, *words))["setup"]
    options = yaml.safe_load(path.read_text())
    assert setup["method"] == recipe.partition("/")[0].split("_")
    assert setup["per_device_train_batch_size"] == 8
    for name in ("max_length", "gradient_accumulation_steps", "gradient_checkpointing", "num_generations"):
        assert name not in options or setup[name] == options[name], name
    assert setup["load_in_4bit"] == options.get("load_in_4bit", False)


def test_a_recipe_names_the_model(config_dir, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"model_name_or_path: {config_dir}\nmax_length: 32\nmax_completion_length: 8\nuse_cpu: true\n")
    assert "bct, 8 rows of 32 tokens" in estimate(capsys, "--recipe", recipe)


def test_what_a_recipe_has_and_is_not_counted_is_said(config_dir, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("max_length: 32\nmax_completion_length: 8\nuse_peft: true\nuse_dora: true\npacking: false\n")
    with pytest.warns(UserWarning, match="what `use_dora` changes is not counted"):
        estimate(capsys, config_dir, "--recipe", recipe)


@pytest.mark.parametrize(
    "line",
    [
        "activation_offloading: true",
        "act_tokens: completion\nmethod: act",
        "steps_per_generation: 8\nnum_generations: 4",
        "loss_type: policy_gradient\nnum_generations: 4",
        "model_init_kwargs: {num_hidden_layers: 1}",
        "ref_model_name_or_path: me/other",
        "disable_dropout: false",
        "label_smoothing_factor: 0.1",
        "optim_args: a=1",
        "pad_to_multiple_of: 64",
        "chat_template_path: me/other",
        "regenerate_targets_every: 1",
        "dose_check: true",
        "guard_split: test",
        "generation_kwargs: {num_beams: 4}",
        "generation_kwargs: '{\"num_beams\": 4}'",
        "num_iterations: 4",
        "completion_length_schedule: [2, 8]",
        "cache_implementation: offloaded",
        "parallelism_config: {cp_size: 2}",
    ],
)
def test_each_option_of_a_recipe_that_changes_memory_is_counted_or_named(config_dir, tmp_path, capsys, line):
    recipe = tmp_path / "recipe.yaml"
    length = "" if "method: act" in line else "max_completion_length: 8\n"
    recipe.write_text(f"max_length: 32\n{length}use_cpu: true\n{line}\n")
    with pytest.warns(UserWarning, match=f"what `{line.partition(':')[0]}` changes is not counted"):
        estimate(capsys, config_dir, "--recipe", recipe)


@pytest.mark.parametrize("kwargs", ["{dtype: bfloat16}", '\'{"dtype": "bfloat16"}\''])
def test_the_dtype_of_model_init_kwargs_is_that_of_the_weights(config_dir, tmp_path, capsys, kwargs):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"max_length: 32\nmax_completion_length: 8\nuse_cpu: true\nmodel_init_kwargs: {kwargs}\n")
    found = json.loads(estimate(capsys, config_dir, "--recipe", recipe, "--json"))
    assert found["setup"]["dtype"] == "bfloat16"
    assert found["memory"]["weights"] == 2 * found["memory"]["parameters"]
    flag = ("--dtype", "float32", "--json")
    assert json.loads(estimate(capsys, config_dir, "--recipe", recipe, *flag))["setup"]["dtype"] == "float32"


def test_an_adapter_without_named_layers_is_on_those_that_training_puts_it_on(config_dir, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("max_length: 32\nmax_completion_length: 8\nuse_cpu: true\nuse_peft: true\n")
    real = get_peft_model(make_model(), get_peft_config(ModelConfig(use_peft=True)))
    trained = sum(weight.numel() for weight in real.parameters() if weight.requires_grad)
    words = ("--max_length", 32, "--max_completion_length", 8, "--use_cpu", "true", "--use_peft")
    for given in (("--recipe", recipe), words):
        found = json.loads(estimate(capsys, config_dir, *given, "--json"))
        assert found["memory"]["trained"] == trained


def test_defaults_in_a_recipe_are_no_options_that_are_not_counted(config_dir, tmp_path, capsys, recwarn):
    recipe = tmp_path / "recipe.yaml"
    lines = ("act_tokens: prompt", "loss_type: nll", "max_length: 32", "max_completion_length: 8", "use_cpu: true")
    lines += ("chat_template_path: own.jinja", "generation_kwargs: {repetition_penalty: 1.1}")
    recipe.write_text("\n".join(lines))
    estimate(capsys, config_dir, "--recipe", recipe)
    recipe.write_text(
        "num_generations: 4\nsteps_per_generation: 2\ngradient_accumulation_steps: 2\nloss_type: divergence\n"
        "num_iterations: 1\ndisable_dropout: true\nref_model_name_or_path: null\nmodel_init_kwargs: {}\nfp16: false"
    )
    estimate(capsys, config_dir, "--recipe", recipe, "--max_length", 32, "--max_completion_length", 8)
    assert not [warning for warning in recwarn if "not counted" in str(warning.message)]


@pytest.mark.parametrize(
    ("line", "flags", "is_on"),
    [
        ("activation_checkpointing: false", [], False),
        ("activation_checkpointing: true\ngradient_checkpointing: false", [], True),
        ("gradient_checkpointing: true", ["--no_gradient_checkpointing"], False),
        ("activation_checkpointing: true", ["--no-gradient-checkpointing"], False),
        ("gradient_checkpointing: false", ["--gradient_checkpointing", "true"], True),
    ],
)
def test_checkpointing_is_as_the_recipe_and_the_flags_have_it(config_dir, tmp_path, capsys, line, flags, is_on):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"max_length: 32\nmax_completion_length: 8\nuse_cpu: true\n{line}\n")
    found = json.loads(estimate(capsys, config_dir, "--recipe", recipe, *flags, "--json"))
    assert found["setup"]["gradient_checkpointing"] is is_on


def test_a_misspelt_key_of_a_recipe_is_an_error(config_dir, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("max_lenght: 32\n")
    with pytest.raises(SystemExit):
        estimate(capsys, config_dir, "--recipe", recipe)
    assert "unknown key" in capsys.readouterr().err


def test_a_recipe_that_a_config_file_names_is_read_and_its_own_keys_win(config_dir, tmp_path, capsys):
    """The recipe was not read at all, and one on the command line replaced what the file says."""
    recipe, config = tmp_path / "recipe.yaml", tmp_path / "estimate.yaml"
    recipe.write_text("max_length: 32\nmax_completion_length: 8\nuse_cpu: true\nper_device_train_batch_size: 2\n")
    config.write_text(f"model_name_or_path: {config_dir}\nrecipe: {recipe}\nper_device_train_batch_size: 3\n")
    for words in (["--config", config], ["--config", config, "--recipe", recipe]):
        setup = json.loads(estimate(capsys, *words, "--json"))["setup"]
        assert (setup["max_length"], setup["per_device_train_batch_size"]) == (32, 3)
    words = ["--config", config, "--per_device_train_batch_size", 4, "--json"]
    assert json.loads(estimate(capsys, *words))["setup"]["per_device_train_batch_size"] == 4


def test_an_option_that_the_recipe_switches_on(config_dir, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    lines = "max_length: 32\nmax_completion_length: 8\nuse_cpu: true\n"
    recipe.write_text(f"{lines}use_peft: true\nlora_r: 4\n")
    assert "LoRA, r = 8" in estimate(capsys, config_dir, "--recipe", recipe, "--lora_r", 8)
    recipe.write_text(f"{lines}lora_r: 4\n")  # which training refuses, too
    with pytest.raises(
        SystemExit, match="`--lora_r` is set without `--use_peft`, so that all weights would be trained"
    ):
        estimate(capsys, config_dir, "--recipe", recipe)


def test_one_block_in_a_config_file(config_dir, tmp_path, capsys):
    config = tmp_path / "estimate.yaml"
    config.write_text("layers: 1\nmethod: act\nmax_length: 32\nuse_cpu: true\n")
    assert json.loads(estimate(capsys, config_dir, "--config", config, "--json"))["setup"]["layers"] == [1]


def test_experts_that_cannot_be_traced_are_told(tmp_path):
    """It was a traceback, with the options that are set by default."""
    folder = save_config(make("qwen3_moe"), tmp_path)
    words = ["--max_length", "32", "--max_completion_length", "8"]
    with pytest.raises(
        SystemExit, match=r"cannot be traced without weights.*[^.]\. Mixtures of experts need `--dtype bfloat16`"
    ):
        cli(["estimate", str(folder), *words])
    cli(["estimate", str(folder), *words, "--dtype", "bfloat16"])


@pytest.mark.long
def test_the_module_computes_what_the_command_does(tmp_path):
    """Its hooks, of `__main__`, were taken for those of a user: the last block was computed as a whole."""
    config = make_model().config
    config.architectures = [type(make_model()).__name__]
    config.save_pretrained(tmp_path)
    options = ["--method", "opct", "--max_length", "64", "--max_completion_length", "16", "--use_peft", "--json"]
    options += ["--num_generations", "2", "--per_device_train_batch_size", "2"]
    found = [
        json.loads(subprocess.run([*command, tmp_path, *options], capture_output=True, text=True, check=True).stdout)
        for command in (
            [sys.executable, "-m", "trl_consistency.cli", "estimate"],
            [sys.executable, "-m", "trl_consistency.scripts.estimate"],
        )
    ]
    assert found[0] == found[1]
