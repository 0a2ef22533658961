import pytest

from trl_consistency.data.repeats import prompt_key


def asked(**call):
    turns = [{"role": "user", "content": "What?"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
    return [*turns, {"role": "tool", "content": "22"}]


@pytest.mark.parametrize(
    "filled",
    [
        {"chat_template_kwargs": {"no_think": None}},
        {"tools": [{"name": "search", "description": None}]},
        {"clean_prompt": asked(name="search", arguments={"city": "Rome", "unit": None})},
    ],
    ids=["variables", "tools", "calls"],
)
def test_keys_that_a_data_set_fills_in_make_no_other_prompt(filled):
    """Those that only other rows have. A file that is read line by line has none of them."""
    row = {"clean_prompt": asked(name="search", arguments={"city": "Rome"}), "tools": [{"name": "search"}]}
    assert prompt_key(row | filled, "clean_prompt") == prompt_key(row, "clean_prompt")
    assert prompt_key(row | {"chat_template_kwargs": {"no_think": False}}, "clean_prompt") != prompt_key(
        row, "clean_prompt"
    )
