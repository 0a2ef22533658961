"""`--engine` of all commands: stand-ins for vLLM in this process and for a server; `test_with_vllm.py` has vLLM itself."""

import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import IA3Config, LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from tests.helpers.evaluate_command import pair, save_adapter, write
from tests.helpers.models import make_tokenizer, with_rope
from tests.helpers.vllm_stand_in import LLM, LoRARequest, Reply, SamplingParams, served, with_adapter  # noqa: F401
from trl_consistency import ConsistencyError
from trl_consistency.cli import main as cli
from trl_consistency.generation import answer_engine
from trl_consistency.generation.server_requests import ServerClient
from trl_consistency.scripts import engines, training
from trl_consistency.scripts.evaluate import run
from trl_consistency.scripts.training_engine import flags_of_engine, naming_engine
from trl_consistency.trainer import target_maker


class Several(LLM):
    """
    Serves all adapters that requests name, as vLLM does. As vLLM on CPUs, it gives requests without one the last adapter.
    """

    def serves(self, request):
        if request is None:
            return [self.held.model, *self.adapters.values()][-1]
        assert self.options["enable_lora"]
        if request.lora_int_id not in self.adapters:
            self.adapters[request.lora_int_id] = with_adapter(self.held.model, Path(request.lora_path))
        assert len(self.adapters) <= self.options["max_loras"] == self.options["max_cpu_loras"]
        return self.adapters[request.lora_int_id]


@pytest.fixture
def in_process(monkeypatch):
    monkeypatch.setattr(LLM, "made", [])
    monkeypatch.setattr(engines, "find_spec", lambda name: name)
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=Several, SamplingParams=SamplingParams))
    monkeypatch.setitem(sys.modules, "vllm.lora.request", SimpleNamespace(LoRARequest=LoRARequest))
    return LLM.made


@pytest.fixture(scope="module")
def adapters(model_dir, tmp_path_factory):
    """One plain, one with a rank and a scale of its own for each layer."""
    folder = tmp_path_factory.mktemp("adapters")
    plain = save_adapter(model_dir, folder / "plain", 0)
    uneven = LoraConfig(
        r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False, use_rslora=True,
        rank_pattern={"q_proj": 9}, alpha_pattern={"down_proj": 90},
    )  # fmt: skip
    get_peft_model(AutoModelForCausalLM.from_pretrained(model_dir), uneven).save_pretrained(folder / "uneven")
    return [plain, str(folder / "uneven")]


@pytest.fixture
def options(model_dir, adapters, tmp_path):
    pairs = write(tmp_path / "pairs.jsonl", [pair(number) for number in range(8)])
    common = ["--model_name_or_path", str(model_dir), "--max_completion_length", "6", "--batch_size", "3"]
    return [*common, "--pairs", pairs, "--adapters", *adapters]


def answers(folder):
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


@pytest.mark.long
def test_vllm_answers_as_transformers_in_one_pass(in_process, options, tmp_path):
    run([*options, "--output_dir", str(tmp_path / "transformers")])
    run([*options, "--output_dir", str(tmp_path / "vllm"), "--engine", "vllm"])
    found, expected = answers(tmp_path / "vllm"), answers(tmp_path / "transformers")
    assert found == expected
    by_model = {}
    for row in expected:
        by_model.setdefault(row["model"], []).append(row["perturbed_text"])
    assert len(set(map(str, by_model.values()))) == 3, "the models answer differently"
    (engine,) = in_process
    assert {name: engine.options[name] for name in ("dtype", "max_lora_rank", "max_loras")} == {
        "dtype": "float32", "max_lora_rank": 16, "max_loras": 3,
    }  # fmt: skip
    prompts = {json.dumps(pair(number)[f"{side}_prompt"]) for number in range(8) for side in ("clean", "perturbed")}
    assert len(engine.calls) == -(-len(prompts) // 3), "one call for each batch of prompts"
    results = json.loads((tmp_path / "vllm" / "results.json").read_text())
    assert results["settings"]["engine"] == "vllm"
    run([*options, "--output_dir", str(tmp_path / "vllm"), "--engine", "vllm"])
    assert len(in_process) == 1, "kept answers need no engine"
    run([*options, "--output_dir", str(tmp_path / "vllm")])
    assert answers(tmp_path / "vllm") == expected


@pytest.mark.long
def test_a_killed_evaluation_goes_on(in_process, options, tmp_path, monkeypatch):
    run([*options, "--output_dir", str(tmp_path / "whole"), "--engine", "vllm"])
    generate, calls = Several.generate, []

    def killed(self, *args, **others):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return generate(self, *args, **others)

    monkeypatch.setattr(Several, "generate", killed)
    with pytest.raises(SystemExit, match="130"):
        run([*options, "--output_dir", str(tmp_path / "killed"), "--engine", "vllm"])
    run([*options, "--output_dir", str(tmp_path / "killed"), "--engine", "vllm"])
    assert answers(tmp_path / "killed") == answers(tmp_path / "whole")


@pytest.mark.long
def test_a_server_answers_as_transformers(served, options, tmp_path):  # noqa: F811
    run([*options, "--output_dir", str(tmp_path / "transformers")])
    complete, failed = served.complete, []

    def forgetting(**body):
        assert body["model"] != "held", "the base model, too, has an adapter, which changes nothing"
        if not failed:
            failed.append(body["model"])
            served.adapters.clear()
        return complete(**body)

    served.complete = forgetting
    run([*options, "--output_dir", str(tmp_path / "server"), "--engine", served.url])
    assert failed
    assert answers(tmp_path / "server") == answers(tmp_path / "transformers")
    assert not served.adapters
    assert not any(folder.exists() for folder in served.folders)


@pytest.mark.parametrize(
    ("root", "name", "is_same"),
    [
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B", True),
        ("/models/qwen3-4b/", "Qwen/Qwen3-4B", True),
        ("/cache/models--Qwen--Qwen3-4B/snapshots/0a1b", "Qwen/Qwen3-4B", True),
        ("Qwen/Qwen3-4B", "/cache/models--Qwen--Qwen3-4B/snapshots/0a1b", True),
        (None, "Qwen/Qwen3-4B", True),
        ("/models/base", "held", True),  # by a name that the server gives it
        ("/models/base", "also", True),
        ("/model", "Qwen/Qwen3-4B", None),
        ("Qwen/Qwen3-4B-Base", "Qwen/Qwen3-4B", False),
        ("Qwen/Qwen3-4B", "Qwen/Qwen3-4B-Base", False),
        ("openai-community/gpt2", "gpt2", True),
        ("mine/Qwen3-4B", "Qwen/Qwen3-4B", False),
        ("/cache/models--mine--Qwen3-4B/snapshots/0a1b", "Qwen/Qwen3-4B", False),
        ("Qwen/Qwen3-4B", "/outputs/qwen3-4b/sft", False),
        ("/outputs/qwen3-4b/sft", "Qwen/Qwen3-4B", None),
    ],
)
def test_the_model_of_a_server(served, caplog, root, name, is_same):  # noqa: F811
    """What another model answered was taken for the answers of the one that was named. Of a folder, only its user knows."""
    served.root, served.other_names = root, ["also"]
    client = ServerClient(served.url, 5.0)
    said = f"serves {root}, and the model is {name}."
    if is_same is False:
        with pytest.raises(ConsistencyError, match=re.escape(said)):
            client.check_serves(name)
        return
    client.check_serves(name)
    assert (said in caplog.text) == (is_same is None)


def test_answers_of_a_server_with_another_model_are_refused(served, options, recipe, tmp_path):  # noqa: F811
    served.root = "models/another"
    for work in (
        lambda: run([*options, "--output_dir", str(tmp_path / "server"), "--engine", served.url]),
        lambda: targets(recipe, tmp_path, "targets", "--engine", served.url),
    ):
        with pytest.raises((ConsistencyError, SystemExit), match="serves models/another, and the model is "):
            work()
    assert not [path for path, _ in served.requests if path == "/v1/completions"]
    assert not list(tmp_path.rglob("batch-*.json"))


@pytest.mark.long
def test_a_server_samples_without_defaults_of_the_model(served, options, tmp_path):  # noqa: F811
    run([*options, "--output_dir", str(tmp_path / "transformers")])
    served.defaults = {"repetition_penalty": 50.0, "top_k": 1, "presence_penalty": 1.0, "min_p": 0.9}
    run([*options, "--output_dir", str(tmp_path / "server"), "--engine", served.url])
    assert answers(tmp_path / "server") == answers(tmp_path / "transformers")
    asked = [body for path, body in served.requests if path == "/v1/completions"]
    assert all(served.defaults.keys() <= body.keys() for body in asked)


def test_refusals(in_process, served, options, adapters, model_dir, tmp_path, monkeypatch):  # noqa: F811
    def refused(*flags):
        known = options[: options.index("--adapters")] if "--adapters" in flags else options
        with pytest.raises(SystemExit) as caught:
            run([*known, "--output_dir", str(tmp_path / "out"), *flags])
        return str(caught.value)

    assert "`engine` must be 'transformers', 'vllm', or the address" in refused("--engine", "vlm")
    assert "`load_in_4bit` is not available with `engine` vllm" in refused("--engine", "vllm", "--load_in_4bit")
    assert "`vllm_adapter_dir` is given, but `engine` is transformers" in refused("--vllm_adapter_dir", str(tmp_path))
    share = ("--vllm_gpu_memory_utilization", "0.5")
    assert "whose memory it cannot change. Leave it out" in refused("--engine", served.url, *share)
    assert "it is for a server" in refused("--engine", "vllm", "--vllm_adapter_dir", str(tmp_path))
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    dora = LoraConfig(r=4, target_modules=["q_proj"], use_dora=True)
    get_peft_model(model, dora).save_pretrained(tmp_path / "dora")
    said = refused("--engine", "vllm", "--adapters", str(tmp_path / "dora"))
    assert "vLLM cannot serve" in said
    assert "vLLM does not serve DoRA. Use `--engine transformers`" in said
    ia3 = IA3Config(target_modules=["q_proj"], feedforward_modules=[])
    get_peft_model(AutoModelForCausalLM.from_pretrained(model_dir), ia3).save_pretrained(tmp_path / "ia3")
    assert "vLLM serves LoRA adapters only" in refused("--engine", "vllm", "--adapters", str(tmp_path / "ia3"))
    model.save_pretrained(tmp_path / "whole")
    assert "names the whole model" in refused("--engine", "vllm", "--adapters", str(tmp_path / "whole"))
    save_file({"stray": torch.zeros(2)}, model_dir / "before.safetensors")
    assert "which differ in before.safetensors" in refused("--engine", "vllm")
    (model_dir / "before.safetensors").unlink()
    served.loads_adapters = False
    assert "does not load adapters while it runs" in refused("--engine", served.url)
    served.loads_adapters = True

    def full(**body):
        raise Reply(500, "out of memory")

    served.complete = full
    assert "did not answer: 500, out of memory. See its log" in refused("--engine", served.url)

    def fails(**others):
        raise ValueError("No available memory\nfor the cache")

    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(LLM=fails, SamplingParams=SamplingParams))
    assert "vLLM could not start: ValueError: No available memory for the cache" in refused("--engine", "vllm")
    monkeypatch.setattr(engines, "find_spec", lambda name: None)
    assert "`engine` vllm needs the package `vllm`" in refused("--engine", "vllm")
    assert answer_engine.is_url("https://gpu-7:8000")


@pytest.mark.parametrize("modules", [["embed_tokens", "q_proj"], ["embed_tokens"]])
def test_an_adapter_on_the_embeddings_is_refused(in_process, served, options, model_dir, tmp_path, modules):  # noqa: F811
    """It was served without its part on the embeddings, and measured as if it had none."""
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    get_peft_model(model, LoraConfig(r=4, target_modules=modules)).save_pretrained(tmp_path / "embed")
    said = rf"vLLM cannot serve {tmp_path / 'embed'}\. The adapter of `model\.embed_tokens` has more .*linear layers alone"
    for engine in ("vllm", served.url):
        with pytest.raises((SystemExit, ConsistencyError), match=said):
            run([*options, str(tmp_path / "embed"), "--output_dir", str(tmp_path / "out"), "--engine", engine])
    assert not in_process


def test_a_long_prompt_that_gives_all_others_its_positions(in_process, served, tmp_path):  # noqa: F811
    """vLLM has one kind of positions for all prompts of a model with `longrope`: one long prompt changed all answers."""
    with_rope("longrope", 64).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    served.root, served.max_model_len = str(tmp_path / "model"), 512

    def measure(name, rows, engine):
        pairs = write(tmp_path / f"{name}.jsonl", rows)
        common = ["--model_name_or_path", str(tmp_path / "model"), "--max_completion_length", "8", "--pairs", pairs]
        run([*common, "--output_dir", str(tmp_path / name), "--engine", engine])

    short = [{**pair(0), "clean_prompt": "Why?", "perturbed_prompt": "I say B. Why?"}]
    long = [{**pair(1), "clean_prompt": "Why? " * 50, "perturbed_prompt": "I say B. " + "Why? " * 50}]
    said = r"wrong positions: this model \(longrope\) has others beyond 64 tokens"
    for name, engine in (("vllm", "vllm"), ("server", served.url)):
        with pytest.raises((SystemExit, ConsistencyError), match=said):
            measure(f"{name}_both", short + long, engine)
        assert not (tmp_path / f"{name}_both" / "results.json").exists()
        measure(f"{name}_long", long, engine)  # which has these positions alone, too
    measure("vllm_short", short, "vllm")
    with pytest.raises((SystemExit, ConsistencyError), match=said):
        measure("server_short", short, served.url)
    served.max_model_len = 64
    measure("server_short", short, served.url)


# Pairs and lint


def verdicts(model_dir, tmp_path, *flags):
    """Verdicts on six questions. The tiny model answers none of them, so that the command ends without a pair."""
    rows = [
        {"question": f"What is number {number}?", "answer": "Ten", "wrong_answers": ["Two"]} for number in range(6)
    ]
    common = ["--dataset_name", write(tmp_path / "questions.jsonl", rows), "--keep_vulnerable", "--batch_size", "4"]
    common += ["--prompt_column", "question", "--test_share", "0.2", "--max_completion_length", "5"]
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    with pytest.raises(SystemExit, match="is vulnerable to no training pair"):
        cli(["pairs", *common, "--model_name_or_path", str(model_dir), "--output_dir", str(folder), *flags])
    return (folder / "verdicts.jsonl").read_text()


def test_an_engine_answers_for_keep_vulnerable(in_process, served, model_dir, tmp_path):  # noqa: F811
    expected = verdicts(model_dir, tmp_path)
    assert "_answer" in expected
    assert verdicts(model_dir, tmp_path, "--engine", "vllm") == expected
    (engine,) = LLM.made
    assert "enable_lora" not in engine.options
    assert verdicts(model_dir, tmp_path, "--engine", served.url) == expected
    assert any(path == "/v1/completions" for path, _ in served.requests)


def test_an_engine_answers_for_the_dose(in_process, served, options, tmp_path, capsys):  # noqa: F811
    pairs, model = str(tmp_path / "pairs.jsonl"), options[1]

    def dose(*flags):
        capsys.readouterr()
        common = ["--pairs", pairs, "--model_name_or_path", model, "--dose_pairs", "4", "--max_completion_length", "5"]
        cli(["lint", *common, "--dose", "--json", *flags])
        return json.loads(capsys.readouterr().out)["dose"]

    expected = dose()
    assert dose("--engine", "vllm") == dose("--engine", served.url) == expected
    assert len(LLM.made) == 1
    assert any(path == "/v1/completions" for path, _ in served.requests)


def test_a_recipe_for_vllm_can_be_linted_with_transformers(options, tmp_path, capsys):
    """The recipe's options of vLLM are for its training."""
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"model_name_or_path: {options[1]}\nuse_vllm: true\nvllm_gpu_memory_utilization: 0.5\n")
    words = ["--pairs", str(tmp_path / "pairs.jsonl"), "--dose_pairs", "2", "--max_completion_length", "3"]
    cli(["lint", "--config", str(recipe), *words, "--dose", "--json"])
    assert "dose" in json.loads(capsys.readouterr().out)


def test_an_engine_that_nothing_is_asked_of(in_process, options, tmp_path):
    lint = ["lint", "--pairs", str(tmp_path / "pairs.jsonl"), "--model_name_or_path", options[1], "--engine", "vllm"]
    with pytest.raises(SystemExit, match="`--engine` is given, but no dose is measured: set `--dose`"):
        cli(lint)
    with pytest.raises(SystemExit, match="`--load_in_4bit` is not available with `--engine` vllm"):
        cli([*lint, "--dose", "--load_in_4bit", "--use_peft"])
    (tmp_path / "recipe.yaml").write_text(f"model_name_or_path: {options[1]}\nengine: vllm\n")
    cli(
        ["lint", "--pairs", str(tmp_path / "pairs.jsonl"), "--config", str(tmp_path / "recipe.yaml")]
    )  # of the training
    with pytest.raises(SystemExit, match="`--engine` is given, but no dose is measured: set `dose`"):
        cli([*lint, "--config", str(tmp_path / "recipe.yaml")])
    pairs = ["pairs", "--dataset_name", str(tmp_path / "pairs.jsonl"), "--output_dir", str(tmp_path / "out")]
    with pytest.raises(
        SystemExit, match="`--engine` is given, but nothing is asked of a model: set `--keep_vulnerable`"
    ):
        cli([*pairs, "--engine", "vllm"])
    with pytest.raises(SystemExit, match="`--engine` must be 'transformers', 'vllm', or the address"):
        cli([*pairs, "--keep_vulnerable", "--model_name_or_path", options[1], "--engine", "vlm"])


# Targets


@pytest.fixture
def recipe(model_dir, tmp_path):
    prompts = [pair(number) for number in range(6)]
    write(
        tmp_path / "pairs.jsonl",
        [{name: row[name] for name in ("clean_prompt", "perturbed_prompt")} for row in prompts],
    )
    file = tmp_path / "recipe.yaml"
    file.write_text(
        f"model_name_or_path: {model_dir}\ndataset_name: {tmp_path / 'pairs.jsonl'}\nmethod: bct\ntemperature: 0.0\n"
        "max_completion_length: 6\nbf16: false\nuse_cpu: true\nreport_to: none\ntarget_batch_size: 4\n"
    )
    return str(file)


def targets(recipe, tmp_path, name, *flags):
    file = tmp_path / f"{name}.jsonl"
    cli(["targets", "--config", recipe, "--targets_file", str(file), "--output_dir", str(tmp_path / name), *flags])
    return [json.loads(line)["completion_ids"] for line in file.read_text().splitlines()]


def test_a_server_makes_the_targets(served, recipe, tmp_path):  # noqa: F811
    expected = targets(recipe, tmp_path, "transformers", "--engine", "transformers")
    assert targets(recipe, tmp_path, "server", "--engine", served.url) == expected
    bodies = [body for path, body in served.requests if path == "/v1/completions"]
    assert [len(body["prompt"]) for body in bodies] == [4, 2]
    assert all(body["model"] == "held" and body["temperature"] == 0 for body in bodies)


def test_a_server_makes_the_targets_of_a_training(served, recipe, tmp_path):  # noqa: F811
    def train(name, *flags):
        cli(["consistency", "--config", recipe, "--output_dir", str(tmp_path / name), "--max_steps", "1", *flags])
        card = (tmp_path / name / "README.md").read_text()
        assert ("at most 6 tokens, by vLLM)" in card) == (name == "server")
        (file,) = (tmp_path / name / "_targets").glob("*/*/batch-000000.json")
        return json.loads(file.read_text())["completion_ids"]

    expected = train("here", "--engine", "transformers")
    assert not served.requests
    assert train("server", "--engine", served.url) == expected
    assert [len(body["prompt"]) for path, body in served.requests if path == "/v1/completions"] == [4, 2]
    with pytest.raises(SystemExit, match=r"`--engine` is http.*, but `--method` act trains without answers"):
        train("act", "--engine", served.url, "--method", "act")
    with pytest.raises(SystemExit, match="`--generation_kwargs` are not available with a server as `--engine`"):
        train("kwargs", "--engine", served.url, "--generation_kwargs", '{"num_beams": 2}')
    with pytest.raises(SystemExit, match="`--engine` must be 'transformers', 'vllm', or the address"):
        train("none", "--engine", "gpu-7:8000")


def test_a_server_that_is_too_slow_for_the_targets(served, recipe, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(target_maker, "SERVER_SECONDS", 0.5)
    served.complete = lambda **body: time.sleep(2)
    with pytest.raises(SystemExit, match=r"no answer within 0.5 seconds. Lower `target_batch_size`, or see"):
        targets(recipe, tmp_path, "slow", "--engine", served.url)


@pytest.fixture
def sharded(monkeypatch):
    """As if FSDP sharded the model."""
    monkeypatch.setattr(target_maker.DistributedBackend, "is_fsdp", True)


def test_a_server_makes_the_targets_of_a_sharded_model(served, recipe, tmp_path, sharded):  # noqa: F811
    answers = targets(recipe, tmp_path, "server", "--engine", served.url)
    assert len(answers) == 6
    assert [len(body["prompt"]) for path, body in served.requests if path == "/v1/completions"] == [4, 2]


def test_a_sharded_model_makes_no_targets(served, recipe, tmp_path, sharded):  # noqa: F811
    with pytest.raises(SystemExit, match=r"Targets cannot be generated by a model that FSDP shards\. "):
        targets(recipe, tmp_path, "x")
    regenerating = ["--regenerate_targets_every", "1", "--num_train_epochs", "2"]
    said = "`--regenerate_targets_every` has the model in training answer, which it cannot where FSDP shards it"
    with pytest.raises(SystemExit, match=said):
        targets(recipe, tmp_path, "x", "--engine", served.url, *regenerating)
    assert not served.requests


URL = "http://gpu-7:8000"


@pytest.mark.parametrize(
    ("engine", "samples_rollouts", "flags"),
    [
        ("transformers", False, ["--use_vllm", "False"]),
        ("transformers", True, ["--use_vllm", "False"]),
        ("vllm", False, ["--use_vllm", "True"]),
        ("vllm", True, ["--use_vllm", "True", "--vllm_mode", "colocate"]),
        (URL, False, ["--use_vllm", "False"]),
        (URL, True, ["--use_vllm", "True", "--vllm_mode", "server", "--vllm_server_base_url", URL]),
    ],
)
def test_engine_and_use_vllm_agree(engine, samples_rollouts, flags):
    use_vllm = flags[1] == "True"
    for args, config in (
        (["--engine", engine], {}),
        ([f"--engine={engine}"], {"use_vllm": use_vllm}),
        (["--max_steps", "3", *flags], {"engine": engine}),
        (["--use-vllm", flags[1].lower()], {"engine": engine}),
    ):
        assert flags_of_engine(args, config, samples_rollouts) == flags
    others = ["--use_vllm", str(not use_vllm).lower()]
    for args, config in ((["--engine", engine, *others], {}), (["--engine", engine], {"use_vllm": not use_vllm})):
        with pytest.raises(ConsistencyError, match=rf"`engine` is {engine}, and `use_vllm` is {others[1]}"):
            flags_of_engine(args, config, samples_rollouts)
    assert flags_of_engine(["--use_vllm", "true"], {}, samples_rollouts) == []


def test_engine_and_mode_agree():
    for config, said in (
        ({"engine": "vllm", "vllm_mode": "server"}, "`vllm_mode` is server"),
        ({"engine": URL, "vllm_mode": "colocate"}, "`vllm_mode` is colocate"),
        ({"engine": URL, "vllm_server_base_url": "http://gpu-8:8000"}, "`vllm_server_base_url` is http://gpu-8:8000"),
        ({"engine": URL, "vllm_server_host": "gpu-8"}, "`vllm_server_host` is gpu-8"),
        ({"engine": URL, "vllm_server_port": 8001}, "`vllm_server_port` is 8001"),
    ):
        with pytest.raises(ConsistencyError, match=rf"`engine` is {config['engine']}, and {said}: they disagree"):
            flags_of_engine([], config, True)


def test_engine_and_other_spellings_agree():
    for config in ({"use_vllm": "yes"}, {"use_vllm": 1}, {"vllm_server_base_url": f"{URL}/"}):
        assert "--vllm_server_base_url" in flags_of_engine(["--engine", URL], config, True)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("`use_vllm` cannot take it. Merge it, or leave `use_vllm` out.", "`engine` {} cannot take it. Merge it, or leave `engine` out."),
        ("Leave `use_vllm` out, or see docs.", "Leave `engine` out, or see docs."),
        ("Set `vllm_mode: colocate`, or `vllm_sync: weights`.", "Set `engine: vllm`, or `vllm_sync: weights`."),
        ("`vllm_mode: server` or `vllm_mode`", "`engine: ADDRESS` or `engine`"),
        ("a server (`use_vllm: true`, `vllm_mode: server`)", "a server (`engine: ADDRESS`)"),
        ("with `--resume_changed use_vllm`.\n  `use_vllm`: false there", "with `--resume_changed use_vllm`.\n  `use_vllm` (`engine`): false there"),
    ],
)  # fmt: skip
def test_messages_name_the_engine_that_was_given(message, said):
    for engine, value in ((URL, URL), ("vllm", "vllm"), ("transformers", "vllm")):
        for args, config in ((["--engine", engine], {}), ([], {"engine": engine})):
            assert naming_engine(args, config)(message) == said.format(value)
    assert naming_engine(["--use_vllm", "true"], {})(message) == message
    both = {"engine": URL, "use_vllm": True, "vllm_mode": "server"}
    assert naming_engine([], both)(message) == message


def test_messages_name_what_is_typed_beside_the_engine():
    message = "`use_vllm` and `vllm_mode: server`"
    assert naming_engine(["--engine", URL], {"use_vllm": True})(message) == "`use_vllm` and `engine: ADDRESS`"


def test_an_error_of_the_trainer_names_the_engine(served, on_policy, monkeypatch):  # noqa: F811
    """Long after the options were read, and with dashes."""
    monkeypatch.setattr(training, "train_and_save", refused)
    with pytest.raises(SystemExit) as end:
        cli([*on_policy, "--engine", served.url])
    assert str(end.value) == f"error: `--engine` {served.url} is not possible: leave `--engine` out."
    with pytest.raises(SystemExit) as end:
        cli([*on_policy, "--use_vllm", "--vllm_mode", "server", "--vllm_server_base_url", served.url])
    assert str(end.value) == "error: `--use_vllm` is not possible: leave `--use_vllm` out."


def refused(*_):
    raise ConsistencyError("`use_vllm` is not possible: leave `use_vllm` out.")


@pytest.fixture
def on_policy(model_dir, tmp_path):
    write(tmp_path / "pairs.jsonl", [pair(number) for number in range(6)])
    words = [
        "on-policy-consistency",
        "--model_name_or_path",
        str(model_dir),
        "--dataset_name",
        str(tmp_path / "pairs.jsonl"),
    ]
    words += [
        "--output_dir",
        str(tmp_path / "out"),
        "--use_cpu",
        "--bf16",
        "false",
        "--report_to",
        "none",
        "--use_peft",
    ]
    return [
        *words,
        "--num_generations",
        "2",
        "--per_device_train_batch_size",
        "2",
        "--gradient_accumulation_steps",
        "1",
    ]


def test_a_server_that_is_not_there(recipe, tmp_path, monkeypatch):
    """Its targets wait for a fixed time, for which training has no option."""
    monkeypatch.setattr(target_maker, "SERVER_SECONDS", 0.1)
    with pytest.raises(SystemExit) as end:
        targets(recipe, tmp_path, "none", "--engine", "http://127.0.0.1:9")
    assert str(end.value).startswith("error: There is no vLLM server at http://127.0.0.1:9 after 0.1 seconds: ")
    assert "vllm_server_timeout" not in str(end.value)


def test_flags_disagree(recipe, tmp_path):
    with pytest.raises(SystemExit, match="`--engine` is vllm, and `--use_vllm` is false: they disagree"):
        targets(recipe, tmp_path, "x", "--engine", "vllm", "--use_vllm", "false")
