"""Pairs under every kind of tokenizer: the token ids are those that the tokenizer itself gives, and the loss is that of these."""

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.helpers.chats import assistant, user
from tests.helpers.models import CHATML, make_config
from tests.helpers.tokenizer_kinds import KINDS, make
from trl_consistency import ConsistencyTrainer


QUESTIONS = {
    "What is the capital of France?": "Paris.",
    "Which fox is quick? 12345": "the fox 12",
    "Is it\nbrown?": "it is\nnot.",
}


def make_rows(template):
    cue = "I think the answer is Lyon. "
    if template:
        return [
            {"clean_prompt": user(asked), "perturbed_prompt": user(cue + asked), "completion": assistant(answer)}
            for asked, answer in QUESTIONS.items()
        ]
    return [
        {"clean_prompt": f"{asked}\nAnswer:", "perturbed_prompt": f"{cue}{asked}\nAnswer:", "completion": f" {answer}"}
        for asked, answer in QUESTIONS.items()
    ]


def ids_of(tokenizer, prompt, completion):
    """The rival: the tokenizer's own ids of a prompt, and of it with its completion."""
    if isinstance(prompt, str):
        return tokenizer(prompt)["input_ids"], tokenizer(prompt + completion)["input_ids"]
    asked = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=True)["input_ids"]
    return asked, tokenizer.apply_chat_template(prompt + completion, return_dict=True)["input_ids"]


@pytest.mark.parametrize("template", [CHATML, None], ids=["chat", "text"])
@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_loss_are_those_of_the_tokenizer(tmp_path, kind, template):
    tokenizer, rows = make(kind, template), make_rows(template)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Qwen3Config(vocab_size=len(tokenizer) + 7, num_key_value_heads=1, head_dim=16, **sizes)
    model = Qwen3ForCausalLM(config).eval()
    options = {"method": "bct", "per_device_train_batch_size": 3, "max_steps": 1, "learning_rate": 1e-9}
    trainer = ConsistencyTrainer(
        model, make_config(tmp_path, **options), train_dataset=Dataset.from_list(rows), processing_class=tokenizer
    )
    total = count = 0
    for row, prepared in zip(rows, trainer.train_dataset, strict=True):
        completion = prepared["completion_ids"]
        for prompt, column in (("clean_prompt", "clean_ids"), ("perturbed_prompt", "perturbed_ids")):
            asked, whole = ids_of(tokenizer, row[prompt], row["completion"])
            if kind.startswith("bytes, begun and") and not template:
                asked, whole = asked[:-1], whole[:-1]  # a prompt that is ended cannot be continued
            assert prepared[column] == asked
            assert [*asked, *completion] == (whole if template else [*whole, tokenizer.eos_token_id])
        ids, start = torch.tensor([prepared["perturbed_ids"] + completion]), len(prepared["perturbed_ids"])
        with torch.no_grad():
            logits = model(ids).logits[0, start - 1 : -1]
        total += F.cross_entropy(logits, ids[0, start:], reduction="sum").item()
        count += len(completion)
    trainer.train()
    assert trainer.state.log_history[-1]["train_loss"] == pytest.approx(total / count, rel=1e-5)
