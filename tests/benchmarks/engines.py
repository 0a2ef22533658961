"""The rows that need vLLM: rollouts, OPCT's whole step and evaluation, by vLLM in the process and by transformers, and `vllm_overlap`."""

import atexit
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from tests.benchmarks.sizes import SIZES, Size
from tests.benchmarks.training import OPTIONS, run_in_turns, text, word_tokenizer
from tests.benchmarks.turns import Turns, run_command
from tests.helpers.vllm_server import free_port, vllm_serve
from trl_consistency import OnPolicyConsistencyConfig, OnPolicyConsistencyTrainer
from trl_consistency.smollm2.checkpoint import build_checkpoint
from trl_consistency.smollm2.rows import load_smollm2_datasets


RIVALS = ("transformers", "vLLM")
OVERLAPPING = ("overlapping", "in turn")
STEPS = 6
PROMPTS, GENERATIONS = 8, 8
ADAPTERS, PAIRS, MANY_PAIRS, ANSWER = 3, 100, 1_000, 16
LORA = {"r": 16, "lora_alpha": 32, "target_modules": "all-linear"}

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB; otherwise a share of the machine's memory


def _folder(size: Size) -> Path:
    """SmolLM2, or at other sizes than the full one a tiny Llama with the head width that vLLM's attention on CPUs needs."""
    if size.name == "full":
        return build_checkpoint(progress=False)
    folder = Path(tempfile.mkdtemp())
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_hidden_layers": 2}
    torch.manual_seed(0)
    shape = {"vocab_size": size.vocabulary, "hidden_size": 64, "intermediate_size": 128, **heads}
    config = LlamaConfig(**shape, max_position_embeddings=512, pad_token_id=0, bos_token_id=None, eos_token_id=1)
    LlamaForCausalLM(config).save_pretrained(folder)
    word_tokenizer(size.vocabulary).save_pretrained(folder)
    return folder


def _pairs(size: Size, rows: int) -> list[dict[str, Any]]:
    if size.name == "full":
        return list(load_smollm2_datasets()["test"].select(range(rows)))
    asked = (text([2 + row % 50, 3, 4, 5 + row // 50]) for row in range(rows))
    keys = {"answer": "w2", "biased_answer": "w3", "category": "words"}
    return [{"clean_prompt": words, "perturbed_prompt": f"w9 {words}", **keys} for words in asked]


def _trainer(rival: str, size: Size, **options: Any) -> OnPolicyConsistencyTrainer:
    """A trainer whose batches have eight rollouts of each of eight prompts."""
    folder = _folder(size)
    of_vllm = {"use_vllm": True, "vllm_mode": "colocate", "vllm_max_model_length": 512} if rival == "vLLM" else {}
    of_batch = {
        "num_generations": GENERATIONS,
        "per_device_train_batch_size": PROMPTS * GENERATIONS,
        "max_completion_length": size.rollouts[2],
    }
    args = OnPolicyConsistencyConfig(
        beta=1.0,
        output_dir=tempfile.mkdtemp(),
        shuffle_dataset=False,
        **{**OPTIONS, **of_batch, **of_vllm, **options},
    )
    columns = ("clean_prompt", "perturbed_prompt")
    rows = [{name: row[name] for name in columns} for row in _pairs(size, 8 * PROMPTS)]
    return OnPolicyConsistencyTrainer(
        model=str(folder),
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(folder),
        peft_config=LoraConfig(**LORA),
    )


def rollouts(rival: str, size: Size) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Samples rollouts of full length. transformers computes each prompt once for all of its rollouts, as vLLM does."""
    name = "min_tokens" if rival == "vLLM" else "min_new_tokens"
    trainer = _trainer(rival, size, generation_kwargs={name: size.rollouts[2]})
    trainer.model.train()
    prompts = [row["perturbed_ids"] for row in trainer.train_dataset.select(range(PROMPTS))]
    repeated = [ids for ids in prompts for _ in range(GENERATIONS)]

    def step() -> None:
        trainer._generate_single_turn(repeated, None, {})

    return step, {}


def whole_step(rival: str, size: Size, turns: Turns) -> Callable[[], None]:
    """
    OPCT's step as it is used: rollouts end where they end, and are trained on a quarter at a time. Two rivals that train on all
    64 at once do not fit into 24 GiB.
    """
    of_batch = {"per_device_train_batch_size": PROMPTS * GENERATIONS // 4, "gradient_accumulation_steps": 4}
    return run_in_turns(_trainer(rival, size, **of_batch), turns)


def evaluation(rival: str, size: Size, pairs: int = PAIRS, *flags: str) -> tuple[Callable[[], Any], dict[str, Any]]:
    """`evaluate` of the base model and three adapters, the start of the engine included. Sizes for tests have eight pairs."""
    folder, work = _folder(size), Path(tempfile.mkdtemp())
    for number in range(ADAPTERS):
        torch.manual_seed(number)
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), LoraConfig(**LORA))
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=1e-3)
        model.save_pretrained(work / f"adapter-{number}")
    rows = _pairs(size, 8 if size.name == "tiny" else pairs)
    (work / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["evaluate", "--model_name_or_path", str(folder)]
    command += ["--adapters", *(str(work / f"adapter-{number}") for number in range(ADAPTERS))]
    command += ["--pairs", str(work / "pairs.jsonl"), "--engine", rival.lower(), *flags]

    def step() -> float:
        with tempfile.TemporaryDirectory() as out:
            return run_command(*command, "--output_dir", out)

    return step, {}


def evaluation_of_many(rival: str, size: Size) -> tuple[Callable[[], Any], dict[str, Any]]:
    """The same for the tiny Llama, many pairs and short answers: what is spent around the model."""
    size = SIZES["quick"] if size.name == "full" else size
    return evaluation(rival, size, MANY_PAIRS, "--max_completion_length", str(ANSWER))


def overlap(rival: str, size: Size) -> tuple[Callable[[], Any], dict[str, Any]]:
    """
    Some steps of OPCT on a server of its own, with 16 rollouts of half the length, which end where they end. Only whole trainings
    take turns: a server would go on sampling in the other rival's turn.
    """
    folder, stack = _folder(size), ExitStack()
    atexit.register(stack.close)
    port = free_port()
    stack.enter_context(vllm_serve(folder, Path(tempfile.mkdtemp()) / "server.log", port))
    trainer = _trainer(
        "transformers",
        size,
        use_vllm=True,
        vllm_mode="server",
        vllm_server_base_url=f"http://127.0.0.1:{port}",
        vllm_overlap=rival == "overlapping",
        loss_type="policy_gradient",
        num_generations=4,
        per_device_train_batch_size=16,
        max_completion_length=size.rollouts[2] // 2,
        max_steps=STEPS,
    )

    def step() -> None:
        trainer.train()

    return step, {}
