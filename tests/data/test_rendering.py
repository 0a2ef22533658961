from pathlib import Path

import pytest
import trl
from tokenizers import processors

from tests.helpers.models import CHATML, make_ending_tokenizer, make_sentencepiece_tokenizer, make_tokenizer
from tests.helpers.processors import TextProcessor
from trl_consistency import InvalidPairsError
from trl_consistency.data.alignment import content_range
from trl_consistency.data.rendering import render_completion, render_prompt


USER = [{"role": "user", "content": "What is the capital of France?"}]
TEMPLATES = sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))


def text(tokenizer, ids):
    return tokenizer.decode(ids, skip_special_tokens=False)


def test_string_prompt_is_tokenized_as_it_is(tokenizer):
    assert render_prompt(tokenizer, "What is it?") == tokenizer("What is it?")["input_ids"]


def test_messages_get_a_generation_prompt(tokenizer):
    rendered = text(tokenizer, render_prompt(tokenizer, USER))
    assert rendered == "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


def test_last_assistant_turn_is_continued(tokenizer):
    rendered = text(tokenizer, render_prompt(tokenizer, [*USER, {"role": "assistant", "content": "The capital"}]))
    assert rendered.endswith("<|im_start|>assistant\nThe capital")


def test_multi_turn_and_system_messages(tokenizer):
    messages = [
        {"role": "system", "content": "Be brief."},
        *USER,
        {"role": "assistant", "content": "Paris."},
        {"role": "user", "content": "Are you sure?"},
    ]
    rendered = text(tokenizer, render_prompt(tokenizer, messages))
    assert rendered.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n")
    assert rendered.endswith("Are you sure?<|im_end|>\n<|im_start|>assistant\n")


def test_tools_and_template_variables_reach_the_template(tokenizer):
    tools = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
    rendered = text(tokenizer, render_prompt(tokenizer, USER, tools, {"no_think": True}))
    assert '"name": "search"' in rendered
    assert rendered.endswith("<think></think>")
    assert "Tools" not in text(tokenizer, render_prompt(tokenizer, USER, []))


def test_keys_that_arrow_added_are_dropped():
    template = "{% for m in messages %}{{ m.keys() | list }}{{ m.content }}{% endfor %}"
    tokenizer = make_tokenizer(template)
    with_none = [{"role": "user", "content": "Hi", "tool_calls": None, "name": None}]
    assert render_prompt(tokenizer, with_none) == render_prompt(tokenizer, [{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize("bos", [None, "<|im_end|>"])
def test_end_of_sequence_added_by_the_tokenizer_is_removed(bos):
    """Pythia and GPT-2 have one token for both: the end was taken for the beginning, and stood between prompt and answer."""
    plain, tokenizer = render_prompt(make_tokenizer(), "What?"), make_ending_tokenizer()
    tokenizer.bos_token = bos
    assert tokenizer("What?")["input_ids"] == [*plain, tokenizer.eos_token_id]
    assert render_prompt(tokenizer, "What?") == plain
    completion = render_completion(tokenizer, "What?", " Paris")
    assert completion.count(tokenizer.eos_token_id) == 1


def test_a_beginning_that_is_also_the_end_stays():
    plain, tokenizer = render_prompt(make_tokenizer(), "What?"), make_tokenizer()
    tokenizer.bos_token = tokenizer.eos_token
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_end|> $A", special_tokens=[("<|im_end|>", tokenizer.eos_token_id)]
    )
    assert render_prompt(tokenizer, "What?") == [tokenizer.eos_token_id, *plain]
    assert text(tokenizer, render_completion(tokenizer, "What?", " Paris")) == " Paris<|im_end|>"


OF_BLOCKS = (
    "{% for m in messages %}[{{ m.role }}] {{ m.content[0].text }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


def make_processor(template=OF_BLOCKS, added="<s> $A"):
    """A processor whose tokenizer adds tokens to every text, as that of LLaVA-1.5 adds one of the beginning."""
    tokenizer = make_tokenizer(template)
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=added, special_tokens=[("<s>", tokenizer.bos_token_id), ("<|im_end|>", tokenizer.eos_token_id)]
    )
    return TextProcessor(tokenizer)


@pytest.mark.parametrize("options", [{}, {"text_kwargs": {"add_special_tokens": False}}, "older"])
@pytest.mark.parametrize("template", [OF_BLOCKS, "{{ bos_token }}" + OF_BLOCKS])
def test_a_processor_begins_a_prompt_as_in_transformers(template, options, monkeypatch):
    """A processor adds the beginning where its template writes none, and a tokenizer alone does not."""
    processor = make_processor(template)
    if options == "older":
        off = {"text_kwargs": {"add_special_tokens": False}}
        monkeypatch.setattr(processor.valid_processor_kwargs, "_defaults", off)
    elif options:
        processor.text_kwargs = options["text_kwargs"]
    blocks = [{"role": "user", "content": [{"type": "text", "text": USER[0]["content"]}]}]
    expected = processor.apply_chat_template(blocks, tokenize=True, add_generation_prompt=True)
    ids = render_prompt(processor, USER)
    assert ids == expected
    assert ids.count(processor.tokenizer.bos_token_id) == (not options or template != OF_BLOCKS)
    completion = render_completion(processor, USER, "Paris.")
    assert text(processor.tokenizer, completion) == " Paris.<|im_end|>"
    assert content_range(processor, USER, ids) == content_range(processor, USER, ids, USER[0]["content"])
    alone = processor.tokenizer
    alone.chat_template = template.replace("content[0].text", "content")
    expected = alone.apply_chat_template(USER, tokenize=True, add_generation_prompt=True, return_dict=True)[
        "input_ids"
    ]
    assert render_prompt(alone, USER) == expected


class Beginning(TextProcessor):
    """Puts a token of the beginning before every text itself, as Molmo 2's and Emu 3's do, whatever its tokenizer does."""

    def __call__(self, text, **options):
        return super().__call__(text=[f"{self.tokenizer.bos_token}{text}"], **options)


@pytest.mark.parametrize("added", ["$A", "$A <|im_end|>"])
def test_a_processor_that_begins_a_prompt_itself(added):
    """The prompts lacked what TRL's trainers and transformers give the model."""
    processor = Beginning(make_processor(added=added).tokenizer)
    blocks = [{"role": "user", "content": [{"type": "text", "text": USER[0]["content"]}]}]
    ids = processor.apply_chat_template(blocks, tokenize=True, add_generation_prompt=True)[0]
    if added != "$A":
        assert ids.pop() == processor.tokenizer.eos_token_id
    assert render_prompt(processor, USER) == ids
    assert ids[0] == processor.tokenizer.bos_token_id
    assert text(processor.tokenizer, render_completion(processor, USER, "Paris.")) == " Paris.<|im_end|>"
    assert content_range(processor, USER, ids) is not None


def test_a_processor_ends_no_prompt():
    processor = make_processor(added="<s> $A <|im_end|>")
    assert render_prompt(processor, USER) == render_prompt(make_processor(), USER)
    assert render_completion(processor, USER, "Paris.") == render_completion(make_processor(), USER, "Paris.")


@pytest.mark.parametrize("completion", ["Paris.", [{"role": "assistant", "content": "Paris."}]])
def test_chat_completion_ends_the_turn(tokenizer, completion):
    assert text(tokenizer, render_completion(tokenizer, USER, completion)).strip() == "Paris.<|im_end|>"


def test_string_completion_ends_the_sequence(tokenizer):
    ids = render_completion(tokenizer, "Q: capital? A:", " Paris")
    assert text(tokenizer, ids) == " Paris<|im_end|>"
    assert render_completion(tokenizer, "Q: capital? A:", " Paris<|im_end|>") == ids


def test_completion_continues_a_prefilled_turn(tokenizer):
    prompt = [*USER, {"role": "assistant", "content": "The capital"}]
    both = render_prompt(tokenizer, prompt) + render_completion(tokenizer, prompt, " is Paris.")
    assert text(tokenizer, both).strip().endswith("<|im_start|>assistant\nThe capital is Paris.<|im_end|>")


def test_completion_that_would_merge_with_the_prompt_keeps_the_prompt_tokens(tokenizer):
    """`capit` + `al` is one token together; at inference the prompt's tokens are already fixed."""
    prompt, completion = "The capit", "al of France"
    together = tokenizer(prompt + completion)["input_ids"]
    prompt_ids = render_prompt(tokenizer, prompt)
    assert together[: len(prompt_ids)] != prompt_ids, "the tokenizer does not merge here: the test shows nothing"
    ids = prompt_ids + render_completion(tokenizer, prompt, completion)
    assert text(tokenizer, ids) == "The capital of France<|im_end|>"


def test_template_that_renders_the_prompt_alone_differently():
    """Gemma 4 style: the generation prompt ends with an empty thought that the full conversation drops."""
    template = CHATML.replace("{% if no_think %}<think></think>{% endif %}", "<think></think>")
    tokenizer = make_tokenizer(template)
    assert text(tokenizer, render_prompt(tokenizer, USER)).endswith("<think></think>")
    assert text(tokenizer, render_completion(tokenizer, USER, "Paris.")).strip() == "Paris.<|im_end|>"


# As Mistral 7B Instruct v0.3 has it: the system text is in the last user turn, but only while nothing follows that turn.
MISTRAL = (
    "{%- if messages[0].role == 'system' -%}{%- set system = messages[0].content -%}{%- set messages = messages[1:] -%}"
    "{%- endif -%}"
    "{%- for message in messages -%}{%- if message.role == 'user' -%}"
    "{{ '[INST] ' + (system + '\n\n' if loop.last and system is defined else '') + message.content + '[/INST]' }}"
    "{%- else -%}{{ ' ' + message.content + eos_token }}{%- endif -%}{%- endfor -%}"
)


def test_a_template_that_renders_the_prompt_itself_differently_is_refused():
    """The first difference is before the question, which would be trained on."""
    tokenizer = make_tokenizer(MISTRAL)
    assert text(tokenizer, render_completion(tokenizer, USER, "Paris.")) == " Paris.<|im_end|>"
    with pytest.raises(InvalidPairsError, match="writes the prompt itself in another way once an answer follows"):
        render_completion(tokenizer, [{"role": "system", "content": "Be brief."}, *USER], "Paris.")


def test_completion_after_a_space_has_no_second_one():
    """The prompt's last token is the space, and such a tokenizer puts one in front of every text."""
    tokenizer = make_sentencepiece_tokenizer()
    merging = make_sentencepiece_tokenizer(merges=[("\u2581", "\u2581")])
    pairs = [("Answer: ", "A"), ("Answer:", " A"), ("Answer: (", "A)"), ("Answer:  ", " A"), ("Answer: ", "  A")]
    for prompt, completion in pairs:
        for of in (tokenizer, merging):
            ids = render_prompt(of, prompt) + render_completion(of, prompt, completion)
            assert of.decode(ids) == f"{prompt}{completion}</s>"


@pytest.mark.parametrize("end", ["", "<|im_end|>", "<|im_end|>\n", " <|im_end|> \n"])
def test_text_completion_ends_once(tokenizer, end):
    ids = render_completion(tokenizer, "What?", f"Paris.{end}")
    assert ids.count(tokenizer.eos_token_id) == 1
    assert ids[-1] == tokenizer.eos_token_id


def test_text_blocks_and_strings_render_alike(tokenizer):
    """Templates of text models lose content blocks without a word, those of multimodal models plain strings."""
    blocks = [
        {
            "role": "user",
            "content": [{"type": "text", "text": "What is the "}, {"type": "text", "text": "capital of France?"}],
        }
    ]
    assert render_prompt(tokenizer, blocks) == render_prompt(tokenizer, USER)
    prefill = [*blocks, {"role": "assistant", "content": [{"type": "text", "text": "It"}]}]
    both = render_prompt(tokenizer, prefill) + render_completion(tokenizer, prefill, " is Paris.")
    assert text(tokenizer, both).strip().endswith("<|im_start|>assistant\nIt is Paris.<|im_end|>")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_real_chat_templates(path):
    """Under every chat template that TRL ships, prompt and completion join to the conversation that inference reads."""
    tokenizer = make_tokenizer(path.read_text())
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    answered = [*USER, {"role": "assistant", "content": "Paris."}]
    try:
        takes_blocks = "France" not in tokenizer.apply_chat_template(answered, tokenize=False)
    except Exception:
        takes_blocks = True
    if takes_blocks:
        answered = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in answered]
    conversation = tokenizer.apply_chat_template(answered, tokenize=False)
    processing_class = TextProcessor(tokenizer) if takes_blocks else tokenizer
    prompt_ids = render_prompt(processing_class, USER)
    completion_ids = render_completion(processing_class, USER, "Paris.")
    assert "France" in text(tokenizer, prompt_ids)
    expected = tokenizer.apply_chat_template(answered[:1], add_generation_prompt=True, tokenize=True, return_dict=True)
    assert prompt_ids == expected["input_ids"]
    assert "Paris." in text(tokenizer, completion_ids)
    assert "France" not in text(tokenizer, completion_ids)
    joined = text(tokenizer, prompt_ids + completion_ids)
    ends = conversation.rstrip().endswith("Paris.")  # GLM-4-MoE: an answer ends where the next turn begins
    whole = text(tokenizer, tokenizer(conversation, add_special_tokens=False)["input_ids"]) + "<|im_end|>" * ends
    assert joined == whole or joined.endswith(whole[whole.index("Paris.") :])


CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"town": "Paris"}}}
WITHOUT_END = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}{% for call in message.tool_calls or [] %}"
    "{{ call.function.name }}({{ call.function.arguments | tojson }}){% endfor %}{{ ' ' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


@pytest.mark.parametrize(
    "answer", ["Paris.", "The tag <b>", {"role": "assistant", "content": "", "tool_calls": [CALL]}]
)
@pytest.mark.parametrize("prefill", ["", "It is"])
def test_an_answer_ends_where_the_template_writes_no_end(answer, prefill):
    """Such a model was taught not to stop. Other templates end an answer once."""
    prompt = [*USER, {"role": "assistant", "content": prefill}] if prefill else USER
    completion = answer if isinstance(answer, str) else [answer]
    for template in (WITHOUT_END, WITHOUT_END.replace("{{ ' ' }}", "{{ '<|im_end|>' }}")):
        tokenizer = make_tokenizer(template)
        ids = render_completion(tokenizer, prompt, completion)
        assert ids.count(tokenizer.eos_token_id) == 1
        assert text(tokenizer, ids).rstrip().endswith("<|im_end|>")
