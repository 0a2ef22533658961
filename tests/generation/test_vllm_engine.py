"""vLLM itself is not run here: a stand-in with the signature of TRL's engine answers with transformers."""

import copy
import importlib.util
import inspect
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from tests.helpers.models import make_config, make_model, make_pairs, make_tokenizer, with_rope
from tests.helpers.vllm_stand_in import HeldModel, SamplingParams, own_context
from trl_consistency import ConsistencyError, ConsistencyTrainer
from trl_consistency.generation import vllm_engine


class Engine:
    """Loads the checkpoint under the model's name, as TRL's does, and notes what it is told."""

    made: "list[Engine]" = []

    def __init__(self, *args, **kwargs):
        bound = inspect.signature(VLLMGeneration.__init__).bind(self, *args, **kwargs)
        bound.apply_defaults()
        self.arguments = bound.arguments
        self.generation_kwargs = {}
        self.calls = []
        self.was_shut_down = False
        self.held = HeldModel(bound.arguments["model"].name_or_path)
        context = bound.arguments["max_model_length"] or own_context(self.held.model)
        self.llm = SimpleNamespace(
            generate=self.answer,
            llm_engine=SimpleNamespace(engine_core=self),
            model_config=SimpleNamespace(max_model_len=context),
        )
        Engine.made.append(self)

    def generate(self, prompts, images, num_generations, profiler=None):
        assert images is None
        assert num_generations == 1
        assert not torch.is_autocast_enabled("cpu")
        self.calls.append((prompts, dict(self.generation_kwargs)))
        params = SamplingParams(
            temperature=self.arguments["temperature"],
            max_tokens=self.arguments["max_completion_length"],
            **self.generation_kwargs,
        )
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        return prompts, self.llm.generate(asked, sampling_params=params), None, None

    def answer(self, prompts, sampling_params):
        """`generate` of `vllm.LLM`, with the token ids of the answers alone."""
        of_prompts = sampling_params if isinstance(sampling_params, list) else [sampling_params] * len(prompts)
        answered = zip(prompts, of_prompts, strict=True)
        return [self.held.sample(prompt["prompt_token_ids"], params)[0] for prompt, params in answered]

    def sync_weights(self):
        pytest.fail("the engine must stay the initial checkpoint")

    def shutdown(self):
        self.was_shut_down = True


@pytest.fixture
def installed(monkeypatch):
    """As if vLLM were installed, and TRL's engine were the stand-in."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        "trl_consistency.trainer.run.checks.find_spec", lambda name: True if name == "vllm" else find_spec(name)
    )
    monkeypatch.setattr(vllm_engine, "load_vllm_generation", lambda: Engine)
    monkeypatch.setattr(vllm_generation, "SamplingParams", SamplingParams, raising=False)
    monkeypatch.setattr(Engine, "made", [])
    return Engine.made


def make_trainer(output_dir, model, lora=False, pairs=None, **options):
    return ConsistencyTrainer(
        model=model,
        args=make_config(output_dir, **{"temperature": 0.0, "target_batch_size": 3, **options}),
        train_dataset=make_pairs(completion=False) if pairs is None else pairs,
        processing_class=make_tokenizer(),
        peft_config=LoraConfig(r=4, target_modules="all-linear") if lora else None,
    )


def targets(trainer):
    trainer.generate_targets()
    return [trainer.targets[ids] for ids in trainer.train_dataset["clean_ids"]]


def test_the_stand_in_has_the_signature_of_the_engine():
    assert list(inspect.signature(Engine.generate).parameters) == list(
        inspect.signature(VLLMGeneration.generate).parameters
    )
    assert callable(VLLMGeneration.sync_weights)


@pytest.mark.parametrize("lora", [False, True])
def test_greedy_targets_equal_those_of_transformers(installed, tmp_path, model_dir, lora):
    plain = make_trainer(tmp_path / "plain", str(model_dir), lora)
    trainer = make_trainer(tmp_path / "vllm", str(model_dir), lora, use_vllm=True)
    assert targets(trainer) == targets(plain)
    (engine,) = installed
    assert [len(prompts) for prompts, _ in engine.calls] == [3, 3, 2]


def test_training_goes_on_with_the_engine_closed(installed, tmp_path, model_dir):
    trainer = make_trainer(tmp_path, str(model_dir), lora=True, use_vllm=True, max_steps=2)
    trainer.train()
    (engine,) = installed
    assert engine.was_shut_down
    trainer.create_model_card()
    card = (Path(trainer.args.output_dir) / "README.md").read_text()
    assert "clean prompts (greedy, at most 8 tokens, by vLLM)" in card


def test_engine_is_closed_when_it_fails(installed, tmp_path, model_dir, monkeypatch):
    monkeypatch.setattr(Engine, "generate", lambda *args, **kwargs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_trainer(tmp_path, str(model_dir), use_vllm=True).generate_targets()
    assert installed[0].was_shut_down


def test_arguments_arrive(installed, tmp_path, model_dir):
    trainer = make_trainer(
        tmp_path,
        str(model_dir),
        use_vllm=True,
        temperature=0.7,
        top_p=0.9,
        top_k=20,
        min_p=0.1,
        repetition_penalty=1.1,
        vllm_model_impl="transformers",
        vllm_gpu_memory_utilization=0.5,
        vllm_max_model_length=256,
        generation_kwargs={"frequency_penalty": 0.5},
    )
    trainer.generate_targets()
    (engine,) = installed
    expected = {
        "mode": "colocate",
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "max_completion_length": 8,
        "model_impl": "transformers",
        "gpu_memory_utilization": 0.5,
        "max_model_length": 256,
        "tensor_parallel_size": 1,
        "enable_sleep_mode": False,  # it would wake up by `sync_weights`
    }
    assert {name: engine.arguments[name] for name in expected} == expected
    sampling = [kwargs for _, kwargs in engine.calls]
    assert all(kwargs["frequency_penalty"] == 0.5 for kwargs in sampling)
    assert all(kwargs["stop_token_ids"] == [2] for kwargs in sampling)
    assert len({kwargs["seed"] for kwargs in sampling}) == len(sampling)


def test_each_prompt_is_sampled_by_itself(installed, tmp_path, model_dir):
    """With one seed for a batch, vLLM gave all of its prompts the same random numbers."""
    flat = 1000.0  # any token is as likely as another
    options = {"use_vllm": True, "temperature": flat, "target_batch_size": 8}
    trainer = make_trainer(tmp_path / "first", str(model_dir), **options)
    found = targets(trainer)
    assert len(set(map(tuple, found))) == len(trainer.train_dataset)
    assert targets(make_trainer(tmp_path / "again", str(model_dir), **options)) == found


def test_killed_run_resumes(installed, tmp_path, model_dir, monkeypatch):
    """Sampled, with the batches that were there kept; a run that finds all of them starts no engine."""
    options = {"use_vllm": True, "temperature": 1.0}
    expected = targets(make_trainer(tmp_path / "whole", str(model_dir), **options))
    generate = Engine.generate

    def fail_at_the_last(self, prompts, *args, **kwargs):
        if len(self.calls) == 2:
            raise KeyboardInterrupt
        return generate(self, prompts, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "generate", fail_at_the_last)
        with pytest.raises(KeyboardInterrupt):
            targets(make_trainer(tmp_path / "killed", str(model_dir), **options))
    assert targets(make_trainer(tmp_path / "killed", str(model_dir), **options)) == expected
    assert [len(engine.calls) for engine in installed] == [3, 2, 1]
    assert targets(make_trainer(tmp_path / "killed", str(model_dir), **options)) == expected
    assert len(installed) == 3


def test_cache_tells_the_engines_apart(installed, tmp_path, model_dir):
    for number, use_vllm in enumerate([False, True], start=1):
        make_trainer(tmp_path, str(model_dir), use_vllm=use_vllm).generate_targets()
        (of_model,) = (tmp_path / "_targets").iterdir()
        assert len([path for path in of_model.iterdir() if path.is_dir()]) == number
    assert len(installed) == 1


def test_options_that_vllm_does_not_have(installed, tmp_path, model_dir):
    with pytest.raises(ConsistencyError, match="`generation_kwargs` has the unknown key `min_new_tokens`"):
        make_trainer(tmp_path, str(model_dir), use_vllm=True, generation_kwargs={"min_new_tokens": 2})
    assert not installed


def with_adapter(model_dir):
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    return get_peft_model(model, LoraConfig(r=4, target_modules="all-linear"))


def test_model_with_an_adapter_is_refused(installed, tmp_path, model_dir):
    model = with_adapter(model_dir)
    with pytest.raises(ConsistencyError, match="comes with an adapter"):
        make_trainer(tmp_path, model, use_vllm=True)
    model.save_pretrained(tmp_path / "adapter")
    make_tokenizer().save_pretrained(tmp_path / "adapter")
    with pytest.raises(ConsistencyError, match="comes with an adapter"):
        make_trainer(tmp_path, str(tmp_path / "adapter"), use_vllm=True)
    injected = AutoModelForCausalLM.from_pretrained(tmp_path / "adapter")
    injected.name_or_path = str(model_dir)
    with pytest.raises(ConsistencyError, match="comes with an adapter"):
        make_trainer(tmp_path, injected, use_vllm=True)


def test_model_that_cannot_be_loaded_by_its_name_is_refused(installed, tmp_path, model_dir):
    with pytest.raises(ConsistencyError, match="`use_vllm` loads the model from its name"):
        make_trainer(tmp_path, make_model(), use_vllm=True)
    with pytest.raises(ConsistencyError, match="takes the main revision"):
        make_trainer(tmp_path, str(model_dir), use_vllm=True, model_init_kwargs={"revision": "v2"})


def test_model_whose_files_are_another_model_is_refused(installed, tmp_path, model_dir):
    """The engine would answer as the model in the files, and not as the reference."""
    model = AutoModelForCausalLM.from_pretrained(model_dir)
    with torch.no_grad():
        model.lm_head.weight.mul_(1.1)
    with pytest.raises(ConsistencyError, match=r"weights of this one \(such as lm_head.weight\) differ from those in"):
        make_trainer(tmp_path, model, use_vllm=True)
    with pytest.raises(ConsistencyError, match=r"whose config is another one than here \(rms_norm_eps\)"):
        make_trainer(tmp_path, str(model_dir), use_vllm=True, model_init_kwargs={"rms_norm_eps": 0.1})
    with pytest.raises(ConsistencyError, match="sets `variant`, which could make the model differ from its files"):
        make_trainer(tmp_path, str(model_dir), use_vllm=True, model_init_kwargs={"variant": "ema"})
    (tmp_path / "two").mkdir()
    for file in model_dir.iterdir():
        shutil.copy(file, tmp_path / "two")
    save_file({"stray": torch.zeros(2)}, tmp_path / "two" / "model_before.safetensors")
    with pytest.raises(ConsistencyError, match=r"which differ in model_before\.safetensors"):
        make_trainer(tmp_path, str(tmp_path / "two"), use_vllm=True)
    rounded = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.bfloat16)
    make_trainer(tmp_path, rounded, use_vllm=True)


def test_model_of_another_revision_is_refused(installed, tmp_path, model_dir, monkeypatch):
    """Of main, the cache has what the tokenizer needs alone: the engine would load main's weights, and nothing could be compared."""
    cached = tmp_path / "hub" / "models--some--model"
    for revision in ("main", "step1"):
        snapshot = cached / "snapshots" / (revision[0] * 40)
        shutil.copytree(model_dir, snapshot)
        (cached / "refs").mkdir(exist_ok=True)
        (cached / "refs" / revision).write_text(snapshot.name)
    weights = cached / "snapshots" / ("m" * 40) / "model.safetensors"
    weights.rename(tmp_path / weights.name)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    model = AutoModelForCausalLM.from_pretrained(cached / "snapshots" / ("s" * 40))
    model.name_or_path = model.config._name_or_path = "some/model"  # as it is after loading a revision
    with pytest.raises(
        ConsistencyError, match="main revision of some/model, and its weights are not in the Hub's cache"
    ):
        make_trainer(tmp_path, model, use_vllm=True)
    (tmp_path / weights.name).rename(weights)
    make_trainer(tmp_path, model, use_vllm=True)


def test_targets_that_the_engine_would_cut(installed, tmp_path, model_dir):
    trainer = make_trainer(tmp_path, str(model_dir), use_vllm=True)
    longest = max(map(len, trainer.train_dataset["clean_ids"]))
    trainer = make_trainer(tmp_path, str(model_dir), use_vllm=True, vllm_max_model_length=longest + 7)
    with pytest.raises(ConsistencyError, match=f"has {longest} tokens.*up to 8. Raise it to at least {longest + 8}"):
        trainer.generate_targets()
    assert not list(tmp_path.rglob("batch-*.json"))


def test_targets_of_a_model_with_longrope(installed, tmp_path):
    """By itself, vLLM takes the context of short texts. With a longer one, it has the positions of long texts for all."""
    with_rope("longrope", 40).save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    trainer = make_trainer(tmp_path, str(tmp_path / "model"), use_vllm=True)
    longest = max(map(len, trainer.train_dataset["clean_ids"]))
    assert 32 < longest <= 40, "an answer would be cut"
    with pytest.raises(
        ConsistencyError, match=f"has a context of 40 tokens.*has {longest} tokens, and answers have up to 8"
    ):
        trainer.generate_targets()
    longer = make_trainer(tmp_path, str(tmp_path / "model"), use_vllm=True, vllm_max_model_length=64)
    with pytest.raises(
        ConsistencyError, match=r"wrong positions: this model \(longrope\) has others beyond 40 tokens"
    ):
        longer.generate_targets()
    assert not list(tmp_path.rglob("batch-*.json"))


def test_eight_bits_are_refused(installed, tmp_path, model_dir):
    class Config:
        load_in_8bit = True

    args = make_config(tmp_path, use_vllm=True)
    with pytest.raises(ConsistencyError, match="in 8 bits"):
        vllm_engine.check_vllm(args, str(model_dir), Config())
    Config.load_in_8bit = False
    vllm_engine.check_vllm(args, str(model_dir), copy.copy(Config()))


def test_not_installed(tmp_path, model_dir, monkeypatch):
    monkeypatch.setattr("trl_consistency.trainer.run.checks.find_spec", lambda name: None)
    with pytest.raises(ConsistencyError, match=r"`use_vllm` needs.*`pip install 'trl\[vllm\]'`"):
        make_trainer(tmp_path, str(model_dir), use_vllm=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vllm_mode": "server"}, r"`vllm_mode` can only be 'colocate'.*`trl-consistency targets`"),
        ({"use_vllm": True, "regenerate_targets_every": 1}, "cannot be used with `regenerate_targets_every`"),
        ({"use_vllm": True, "generation_kwargs": {"seed": 1}}, "`generation_kwargs` sets `seed`"),
        ({"use_vllm": True, "temperature": 0.001}, r"vLLM \(`use_vllm`\) would sample at 0.01, its lowest"),
        ({"vllm_model_impl": "jax"}, "`vllm_model_impl` must be 'transformers' or 'vllm'"),
        ({"vllm_gpu_memory_utilization": 0.0}, "`vllm_gpu_memory_utilization` must be above 0"),
        ({"vllm_max_model_length": 0}, "`vllm_max_model_length` must be at least 1"),
    ],
)
def test_faulty_options(tmp_path, options, message):
    with pytest.raises(ConsistencyError, match=message):
        make_config(tmp_path, **options)
