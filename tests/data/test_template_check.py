import json
import re
from datetime import datetime
from pathlib import Path

import pytest
import trl
from datasets import Dataset

from tests.helpers.models import CHATML, make_pairs, make_tokenizer
from trl_consistency.data.prepare import prepare_pairs
from trl_consistency.data.rendering import render_completion, render_prompt
from trl_consistency.errors import InvalidPairsError
from trl_consistency.trainer.run.data_checks import check_chat_template


USER = {"role": "user", "content": "What is\n the capital?  "}
SYSTEM = {"role": "system", "content": "Be brief."}
THOUGHT = {"role": "assistant", "content": "Paris.", "reasoning_content": "Hm."}
CALL = {"function": {"name": "search", "arguments": {"for": 'the "capital"'}}}
SAID_CALL = {"function": {"name": "search", "arguments": {"for": "the capital"}}}
TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
TURN = "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
TRIMMED = CHATML.replace("+ message.content +", "+ message.content | trim +")


def changed(content: str) -> str:
    return CHATML.replace("message.content", content)


@pytest.mark.parametrize(
    ("role", "turn"),
    [
        ("model", "'<start_of_turn>model'"),  # Gemma 3
        ("model", '("model" if message.role == "assistant" else message.role)'),
        ("developer", '("developer" if message.role == "system" else message.role)'),  # gpt-oss
        ("function", '("function" if message.role == "tool" else message.role)'),
        ("ipython", '("ipython" if message.role == "tool" else message.role)'),  # Llama 3
        ("tool", '("tool" if message.role == "function" else message.role)'),
    ],
)
def test_roles_of_some_models_alone_are_refused_for_others(role, turn):
    """Many templates write the name of any role, which the model has never seen."""
    messages = [USER, {"role": role, "content": "Paris."}, USER]
    with pytest.raises(
        InvalidPairsError, match=f"message 1 has the role `{role}`, and the chat template has no turns of"
    ):
        render_prompt(make_tokenizer(CHATML.replace("tools", "documents")), messages)
    knowing = make_tokenizer(CHATML.replace("message.role", turn))
    assert f"{role}\nParis." in knowing.decode(render_prompt(knowing, messages))


def test_turns_of_tools_where_the_template_reads_tools():
    tokenizer = make_tokenizer()
    messages = [USER, {"role": "tool", "content": "Paris."}, USER]
    assert "tool\nParis." in tokenizer.decode(render_prompt(tokenizer, messages))


@pytest.mark.parametrize(
    ("template", "messages", "tools", "message"),
    [
        (changed("message.content[:9]"), [USER], None, r"message 0 \(user\) says: 'What is"),
        (changed("message.content | upper"), [USER], None, r"message 0 \(user\)"),
        (
            CHATML.replace(TURN, "{% if message.role == 'user' %}" + TURN + "{% endif %}"),
            [SYSTEM, USER],
            None,
            "brief",
        ),
        (CHATML.replace("if tools", "if no_tools"), [USER], TOOLS, "`tools` says: 'search'"),
        (CHATML, [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, SYSTEM], None, "'search'"),
        (CHATML, [USER, THOUGHT], None, r"message 1 \(assistant\) says: 'Hm.'"),
        (
            CHATML,
            [USER, {"role": "assistant", "content": "I look.", "function_call": CALL["function"]}, USER],
            None,
            "'search'",
        ),
        (
            CHATML,
            [USER, {"role": "assistant", "content": "I look.", "tool_plan": "First the map."}, USER],
            None,
            "'First the map.'",
        ),
        (
            CHATML,
            [USER, {"role": "assistant", "content": "Paris.", "thinking_blocks": [{"thinking": "Hm."}]}],
            None,
            r"message 1 \(assistant\) says: 'Hm.'",
        ),
    ],
    ids=["cut", "upper", "system", "tools", "call", "thought", "function call", "plan", "blocks"],
)
def test_templates_that_leave_out_text_are_refused(template, messages, tools, message):
    with pytest.raises(InvalidPairsError, match=f"the chat template leaves out or changes what .*{message}"):
        render_prompt(make_tokenizer(template), messages, tools)


@pytest.mark.parametrize(
    ("template", "messages", "tools", "message"),
    [
        (
            CHATML.replace("if tools", "if no_tools"),
            [{"role": "user", "content": "Please search."}],
            TOOLS,
            "`tools` says: 'search'",
        ),
        (
            CHATML.replace(TURN, "{% if message.role == 'user' %}" + TURN + "{% endif %}"),
            [SYSTEM, {"role": "user", "content": "What is it? Be  brief."}],
            None,
            "message 0 .system. says: 'Be brief.'",
        ),
    ],
    ids=["tools", "system"],
)
def test_text_that_is_left_out_and_said_elsewhere_is_refused(template, messages, tools, message):
    with pytest.raises(InvalidPairsError, match=f"{message} is not in the rendered text as often as it is said"):
        render_prompt(make_tokenizer(template), messages, tools)


@pytest.mark.parametrize("prompt", [[USER], [SYSTEM, USER, {"role": "assistant", "content": "So"}]])
@pytest.mark.parametrize(
    ("answer", "left_out"),
    [
        ({"tool_calls": [SAID_CALL]}, "search"),
        ({"reasoning_content": USER["content"]}, "What is"),
        ({"refusal": "the capital"}, "the capital"),
    ],
    ids=["call", "thought", "refusal"],
)
def test_a_completion_that_is_left_out_and_said_in_the_prompt_is_refused(prompt, answer, left_out):
    """The target was what else the answer has, or the end of the turn alone."""
    completion = [{"role": "assistant", "content": "", **answer}]
    said = re.escape(f"what message {len(prompt) - (len(prompt) > 1)} (assistant) says: '{left_out}")
    with pytest.raises(InvalidPairsError, match=f"leaves out or changes {said}"):
        render_completion(make_tokenizer(), prompt, completion, TOOLS)
    others = "(message.tool_calls or message.reasoning_content or message.refusal or '') | string"
    tokenizer = make_tokenizer(changed(f"message.content + {others}"))
    assert left_out in tokenizer.decode(render_completion(tokenizer, prompt, completion, TOOLS))


def test_a_call_that_a_real_template_leaves_out_is_refused():
    """LFM 2's first template writes the list of tools, and no calls."""
    tokenizer = make_tokenizer((Path(trl.__file__).parent / "chat_templates" / "lfm2.jinja").read_text())
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    completion = [{"role": "assistant", "content": "", "tool_calls": [SAID_CALL]}]
    with pytest.raises(InvalidPairsError, match=r"message 1 \(assistant\) says: 'search'"):
        render_completion(tokenizer, [USER], completion, TOOLS)


def test_a_completion_that_says_what_the_prompt_says():
    """It is written again, after a begun answer and with an empty thought at the prompt's end, too."""
    thinking = make_tokenizer(CHATML.replace("message.content", "message.content | trim"))
    for prompt in ([USER], [SYSTEM, USER, {"role": "assistant", "content": "So <"}]):
        for kwargs in ({}, {"no_think": True}):
            ids = render_completion(thinking, prompt, "<b> What is\n the capital?", None, kwargs)
            assert thinking.decode(ids).strip().endswith("b> What is\n the capital?<|im_end|>")


def test_text_that_is_said_in_several_forms(tokenizer):
    """A tool's result in JSON, and a thought that its message holds twice and the template writes once."""
    assert render_prompt(tokenizer, [SYSTEM, {"role": "user", "content": "Be brief. Be brief."}, SYSTEM])
    written = "(message.content | tojson if message.role == 'tool' else message.content)"
    degrees = [{"role": "tool", "content": "22 \u00b0C\n"}, {"role": "assistant", "content": "22 \u00b0C"}]
    ascii_alone = changed(written).replace("tojson", "tojson(ensure_ascii=True)")
    assert render_prompt(make_tokenizer(ascii_alone), [USER, *degrees, USER])
    twice = {"role": "assistant", "content": "<think>Hm.</think>Paris.", "reasoning_content": "Hm."}
    assert render_prompt(tokenizer, [USER, twice])


def test_what_templates_may_change():
    """White space, the thoughts of earlier turns, and how a text is quoted."""
    calls = "{{ message.tool_calls | tojson if message.tool_calls }}"
    tokenizer = make_tokenizer(TRIMMED.replace("{%- endfor -%}", calls + "{%- endfor -%}", 1))
    earlier = [THOUGHT, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    assert render_prompt(tokenizer, [SYSTEM, USER, *earlier, USER], TOOLS)


@pytest.mark.parametrize("written", ["call.function.arguments", "call.function | tojson"])
def test_arguments_of_calls_may_be_json_in_ascii(written):
    """As the APIs that serve models give them, and as `json.dumps` writes them."""
    calls = "{% for call in message.tool_calls %}{{ call.function.name }}{{ " + written + " }}{% endfor %}"
    tokenizer = make_tokenizer(CHATML.replace("{%- endfor -%}", calls + "{%- endfor -%}", 1))
    call = {"function": {"name": "search", "arguments": json.dumps({"for": 'São "Paulo"'})}}
    assert render_prompt(tokenizer, [USER, {"role": "assistant", "content": "", "tool_calls": [call]}, USER])


@pytest.mark.parametrize(
    "written",
    [
        "call.function | tojson",
        "call.function.arguments | tojson",
        "'{' ~ (call.function.arguments if call.function.arguments is string else call.function.arguments.town) ~ '}'",
        "call.function.arguments if call.function.arguments is string else (call.function.arguments | tojson)",
    ],
    ids=["function", "arguments", "braces", "either"],
)
@pytest.mark.parametrize("arguments", [{"town": "Paris"}, {}, {"town": 'São "Paulo"'}])
def test_arguments_that_are_json_text_are_written_as_objects(written, arguments):
    """The model learned to write a text within JSON in the place of an object."""
    calls = "{% for call in message.tool_calls or [] %}{{ call.function.name }}{{ " + written + " }}{% endfor %}"
    tokenizer = make_tokenizer(CHATML.replace("{%- endfor -%}", calls + "{%- endfor -%}", 1))

    def both(given):
        call = {"type": "function", "function": {"name": "search", "arguments": given}}
        asked = [USER, {"role": "assistant", "content": "", "tool_calls": [call]}]
        return render_prompt(tokenizer, [*asked, USER]), render_completion(tokenizer, [USER], asked[1:])

    assert both(json.dumps(arguments, ensure_ascii=False)) == both(arguments)


def test_arguments_that_a_template_takes_as_text_stay():
    """DeepSeek V3's template joins them to other texts."""
    calls = "{% for call in message.tool_calls or [] %}{{ call.function.name + call.function.arguments }}{% endfor %}"
    tokenizer = make_tokenizer(CHATML.replace("{%- endfor -%}", calls + "{%- endfor -%}", 1))
    call = {"function": {"name": "search", "arguments": '{"town":"Paris"}'}}
    ids = render_completion(tokenizer, [USER], [{"role": "assistant", "content": "", "tool_calls": [call]}])
    assert 'search{"town":"Paris"}' in tokenizer.decode(ids)


def test_completion_that_is_left_out_is_refused(tokenizer):
    with pytest.raises(InvalidPairsError, match=r"message 1 \(assistant\) says: 'Hm.'"):
        render_completion(tokenizer, [USER], [THOUGHT])


def test_unknown_template_variable_is_refused(tokenizer):
    """The template sets `later` itself, and reads `ready` before it sets it."""
    template = CHATML + "{% set later = 1 %}{% if ready is not defined %}{% set ready = later %}{% endif %}{{ ready }}"
    assert render_prompt(make_tokenizer(template), [USER], None, {"ready": 2, "no_think": True})
    with pytest.raises(
        InvalidPairsError, match=r"`later`, a variable that the chat template does not have. Leave it out"
    ):
        render_prompt(make_tokenizer(template), [USER], None, {"later": 2})
    pairs = make_pairs(2).add_column("chat_template_kwargs", [{"no_think": True}, {"no_thinks": True}])
    with pytest.raises(InvalidPairsError, match=r"row 1: .*`no_thinks`.* Did you mean `no_think`\?"):
        prepare_pairs(pairs, tokenizer, "train_dataset")


def test_templates_by_name(tokenizer):
    by_name = make_tokenizer({"default": CHATML.replace("Tools", "None"), "tool_use": CHATML})
    assert render_prompt(by_name, [USER], TOOLS) == render_prompt(tokenizer, [USER], TOOLS)
    assert render_prompt(by_name, [USER]) == render_prompt(tokenizer, [USER])


@pytest.mark.parametrize(("variables", "is_told"), [(None, True), ({"date_string": "26 Jul 2024"}, False)])
def test_date_of_the_day_is_told(caplog, variables, is_told):
    """As Llama 3's template: rows of another day, and the model's answers to them, are others."""
    date = "{{ date_string if date_string is defined else strftime_now('%d %b %Y') }}"
    tokenizer, pairs = make_tokenizer(f"Today: {date}\n{CHATML}"), make_pairs(2)
    sets = {"train_dataset": pairs, "eval_dataset": pairs}
    check_chat_template(tokenizer, sets, chat_template_kwargs=variables)
    today = f"writes the day's date into prompts ({datetime.now().strftime('%d %b %Y')})"
    assert caplog.text.count(today) == is_told


@pytest.mark.parametrize(
    ("clean", "perturbed", "is_told"), [([], [], True), ([SYSTEM], [], True), ([SYSTEM], [SYSTEM], False)]
)
def test_date_in_a_system_message_of_the_template(caplog, clean, perturbed, is_told):
    """As Granite 3's, which it writes where the messages have none. Only the first clean prompt was looked at."""
    own = "{% if messages[0].role != 'system' %}Today: {{ strftime_now('%d %b %Y') }}{% endif %}"
    pair = {"clean_prompt": [SYSTEM, USER], "perturbed_prompt": [SYSTEM, USER]}
    rows = [pair, {"clean_prompt": [*clean, USER], "perturbed_prompt": [*perturbed, USER]}]
    check_chat_template(make_tokenizer(own + CHATML), {"train_dataset": rows})
    assert ("writes the day's date" in caplog.text) == is_told


@pytest.mark.parametrize("as_list", [False, True])
def test_date_in_late_rows_is_told(caplog, as_list):
    """Two sets, one behind the other. The first 1,000 rows alone were looked at."""
    own = "{% if messages[0].role != 'system' %}Today: {{ strftime_now('%d %b %Y') }}{% endif %}"
    rows = [{"clean_prompt": [*first, USER], "perturbed_prompt": [*first, USER]} for first in ([SYSTEM], [])]
    rows = [rows[0]] * 1_100 + [rows[1]] * 20
    check_chat_template(make_tokenizer(own + CHATML), {"pairs": rows if as_list else Dataset.from_list(rows)})
    assert caplog.text.count("writes the day's date") == 1


@pytest.mark.parametrize("variables", [[{"dated": False}, {"dated": True}], [{"day": "today"}, {"day": ""}]])
def test_date_that_a_variable_switches_on_is_told(caplog, variables):
    """Rows with the same variables may have other values."""
    dated = "{% if dated or (day is defined and not day) %}Today: {{ strftime_now('%d %b %Y') }}{% endif %}"
    of_pair = {"clean_prompt": [USER], "perturbed_prompt": [USER]}
    rows = [{**of_pair, "chat_template_kwargs": json.dumps(of_row)} for of_row in variables]
    check_chat_template(make_tokenizer(dated + CHATML), {"train_dataset": Dataset.from_list(rows)})
    assert "writes the day's date" in caplog.text
