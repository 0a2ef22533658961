"""The beginning of a reply has the tokens that a completion there has, with every kind of tokenizer."""

import pytest

from tests.helpers.chats import assistant, user
from tests.helpers.models import CHATML
from tests.helpers.tokenizer_kinds import KINDS, make
from tests.helpers.trl_templates import trl_tokenizer
from trl_consistency.data.begun_replies import BegunReplies
from trl_consistency.data.rendering import render_completion, render_prompt


# As Mistral's first one, which writes a space before a reply and ends it with the end-of-sequence token
SPACED = (
    "{% for message in messages %}{% if message.role == 'user' %}[INST] {{ message.content }} [/INST]"
    "{% else %} {{ message.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
# As Zephyr's, whose header ends in a line break
LINES = (
    "{% for message in messages %}<|{{ message.role }}|>\n{{ message.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
# As gpt-oss's, which writes words between the header and the reply
WORDS = (
    "{% for message in messages %}<|{{ message.role }}|>{% if message.role == 'assistant' %}final: {% endif %}{{ message.content }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
ASKED = "What is the capital of France?"
ANSWERS = ["Paris", "A", "it is the fox", "12", "(A"]


@pytest.mark.parametrize("template", [CHATML, SPACED, LINES, WORDS], ids=["chatml", "spaced", "lines", "words"])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_a_completion(kind, template):
    """A SentencePiece tokenizer wrote "▁Paris", where a model had learned to write "Paris"."""
    tokenizer = make(kind, template)
    prompt = user(ASKED)
    begin, ids = BegunReplies(tokenizer), render_prompt(tokenizer, prompt)
    for answer in ANSWERS:
        completion = render_completion(tokenizer, prompt, assistant(answer), prompt_ids=ids)
        length = completion.index(tokenizer.eos_token_id)
        assert begin(prompt, ids, answer) == completion[:length]


@pytest.mark.parametrize(
    ("template", "variables"),
    [
        ("glm4moe", {"enable_thinking": False}),
        ("qwen3", {"enable_thinking": False}),
        ("qwen3_5_think", {"enable_thinking": False}),
        ("gptoss", {}),
        ("llama3_1", {}),
    ],
)
def test_a_prompt_may_hold_the_beginning_of_the_header(template, variables):
    """With GLM-4.5, a line break comes between an empty thought in the prompt and the reply."""
    tokenizer, prompt = trl_tokenizer(template), user(ASKED)
    ids = render_prompt(tokenizer, prompt, None, variables)
    begun = BegunReplies(tokenizer)(prompt, ids, "The answer is (A")
    completion = render_completion(tokenizer, prompt, assistant("The answer is (A"), None, variables, ids)
    assert begun == completion[: len(begun)]
    assert tokenizer.decode(begun).endswith("The answer is (A")
