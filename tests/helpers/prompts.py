"""Real prompts, and mutations of them."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

import trl
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from tests.helpers.chats import user
from trl_consistency.data.alignment import header_length


SHARED = Path(__file__).parents[2] / ".." / "shared" / "data" / "pairs"


CHAT_TEMPLATES = Path(trl.__file__).parent / "chat_templates"


TEMPLATES = [
    "cohere",
    "deepseek_r1_distill",
    "deepseekv3",
    "gemma",
    "gemma3",
    "glm4moe",
    "gptoss",
    "lfm2",
    "llama3",
    "llama3_1",
    "llama3_2",
    "nemotron_3_nano",
    "phi3",
    "phi3_5",
    "qwen2_5",
    "qwen3",
    "qwen3_5_think",
    "qwen3_instruct_2507",
]


# Letters, digits and punctuation apart, the punctuation with the newlines after it: what Llama 3 and Qwen split on.
WORDS_AND_PUNCTUATION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def load_rows():
    rows = []
    for path in sorted(SHARED.glob("*.jsonl")):
        rows += [json.loads(line) for line in path.read_text().splitlines()]
    return [
        row
        for row in rows
        if len(row["clean_prompt"]) == 1 and row["clean_prompt"][0]["content"].startswith(row["question"])
    ]


def train_backend(texts, special, pattern):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = (
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        if pattern
        else pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    backend.decoder = decoders.ByteLevel()
    # Llama 3 trims the offsets, Qwen does not.
    backend.post_processor = processors.ByteLevel(trim_offsets=bool(pattern))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=3000, special_tokens=special, initial_alphabet=alphabet)
    )
    return backend


@dataclass(repr=False)
class Real:
    rows: list
    tokenizers: dict
    headers: dict


def make_real(rows):
    """Rows of the real data, and tokenizers trained on them, one for each template and way to split words."""
    templates = {name: (CHAT_TEMPLATES / f"{name}.jinja").read_text() for name in TEMPLATES}
    # DeepSeek writes its marks with a full-width bar.
    mark = re.compile(r"<[|\uff5c]\w[^<>{}'\"]*[|\uff5c]>")
    marks = {found for template in templates.values() for found in mark.findall(template)}
    special = ["<s>", "<eos>", *sorted(marks), "<start_of_turn>", "<end_of_turn>"]
    texts = [message["content"] for row in rows[::2] for message in row["perturbed_prompt"]]
    tokenizers = {}
    for split, pattern in (("gpt2", None), ("llama3", WORDS_AND_PUNCTUATION)):
        backend = train_backend(texts, special, pattern)
        for name, template in templates.items():
            tokenizers[name, split] = PreTrainedTokenizerFast(
                tokenizer_object=backend, bos_token="<s>", eos_token="<eos>", chat_template=template
            )
    headers = {key: header_length(tokenizer, user("What?")) for key, tokenizer in tokenizers.items()}
    return Real(rows, tokenizers, headers)


CUES = (
    "I think the answer is (B), but I'm curious what you think.",
    "A professor says: A",
    "Is it D?!",
    "Résumé — naïve 🤔 guess: C",
    "x",
)


SEAMS = ("\n", " ", "\n\n", "", "\t", "  ", " \n", "...\n")


@st.composite
def mutations(draw, row):
    """A perturbed prompt, and the text that it shares with the clean one."""
    content, question = row["clean_prompt"][0]["content"], row["question"]
    cue, seam = draw(st.sampled_from(CUES)), draw(st.sampled_from(SEAMS))
    kind = draw(st.sampled_from(["as given", "start", "before choices", "end", "few-shot", "system", "seam"]))
    before, choices = re.split(r"(?=Answer choices:)", question, maxsplit=1)
    if kind == "as given" and len(row["perturbed_prompt"]) == 1:
        perturbed = row["perturbed_prompt"]
        return perturbed, question if question in perturbed[0]["content"] else choices
    if kind == "before choices":
        return user(content.replace(choices, cue + seam + choices)), choices
    if kind == "end":
        return user(content + seam + cue), question
    if kind == "few-shot":
        label = draw(st.sampled_from(["The best answer is: (A).", "A", "B\n", ""]))
        return user(f"{question}{seam}{label}{seam}\n{cue}{seam}{content}"), question
    if kind == "system":
        return [{"role": "system", "content": cue}, *user(content)], question
    if kind == "seam":
        return user(seam + content.replace("\n\n", draw(st.sampled_from(["\n\n", "\n", "\n\n\n"])))), before
    return user(cue + seam + content), question
