"""Pairs in TRL's formats: what TRL's own trainers make of them is what the model said, after the perturbed prompt."""

import json
from collections import Counter

import pytest
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from tests.helpers.chats import assistant, user
from tests.helpers.models import CHATML, QUIET, make_model, make_pairs, make_tokenizer
from tests.helpers.small_vocabulary import small_tokenizer
from tests.helpers.trl_templates import trl_tokenizer
from trl_consistency import ConsistencyError, InvalidPairsError
from trl_consistency.data.rendering import continuation, render_completion, render_prompt
from trl_consistency.evaluation import AnswerOptions, PairSet, conversion, convert_pairs
from trl_consistency.evaluation.answers import generate as answering


OPTIONS = AnswerOptions(8, 4, progress=False)


def row(clean, perturbed, **columns):
    return {"clean_prompt": user(clean), "perturbed_prompt": user(perturbed), **columns}


@pytest.fixture
def says(monkeypatch, tokenizer):
    """What the model says to each prompt, in place of its own answers; returns the prompts that were asked."""

    def set_answers(answers, asked):
        def generate(model, processing_class, prompts, options, *args, **kwargs):
            given = {tuple(render_prompt(tokenizer, user(prompt))): answers[prompt] for prompt in answers}
            asked.extend(prompts)
            ids = [tokenizer(text=given[tuple(prompt)], add_special_tokens=False)["input_ids"] for prompt in prompts]
            return [of_prompt[: options.max_new_tokens] for of_prompt in ids]

        monkeypatch.setattr(answering, "generate_ids", generate)

    return set_answers


def capital(question, cue, **columns):
    return row(
        question, f"{cue} {question}", **{"answer": "Paris", "biased_answer": "Rome", "category": "", **columns}
    )


def test_targets_that_were_cut_are_left_out_where_the_model_tells(model, tokenizer, says):
    """`trl-consistency targets` writes them as they are, and TRL would mark the cut as the end of the answer."""
    says({"Rome! 1?": "Rome.", "Rome! 2?": "Rome."}, [])
    ids = {text: tokenizer(text=text, add_special_tokens=False)["input_ids"] for text in ("Paris.", "It is Par")}
    pairs = [
        capital("1?", "Rome!", completion="Paris.", completion_ids=[*ids["Paris."], tokenizer.eos_token_id]),
        capital("2?", "Rome!", completion="It is Par", completion_ids=ids["It is Par"]),
    ]
    found = convert_pairs(pairs, "preference", model, tokenizer, OPTIONS)
    assert [of["chosen"] for of in found.rows] == [assistant("Paris.")]
    assert found.reasons() == {conversion.CUT: 1}


def test_targets_that_may_have_been_cut_are_told(tokenizer):
    """Without a model, nothing says which token ends an answer, but most of them end in it."""
    *cut, end = tokenizer(text="Oslo.", add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
    pairs = [capital(f"{row}?", "Rome!", completion="Oslo.", completion_ids=[*cut, end]) for row in range(3)]
    assert convert_pairs(pairs, "sft", tokenizer=tokenizer).warnings == []
    pairs[1]["completion_ids"] = cut
    (warning,) = convert_pairs(pairs, "sft", tokenizer=tokenizer).warnings
    assert warning.startswith("1 of 3 `completion_ids` do not end in the same token as most, row 1 first: they may")


def test_what_evaluate_warns_of_is_told_of_prompts_that_are_answered(model, says):
    text = {"clean_prompt": "What is it", "perturbed_prompt": "Lyon What is it"}
    unknown = convert_pairs([text], "sft", model, small_tokenizer(), OPTIONS).warnings
    assert [warning.partition(" in their")[0] for warning in unknown] == ["1 row(s) hold 1 word(s) or sign(s)"]
    as_text = convert_pairs([text], "sft", model, make_tokenizer(), OPTIONS).warnings
    assert [warning.partition(",")[0] for warning in as_text] == ["1 row(s) are text"]


def test_template_variables_of_text_are_refused():
    """They became a column of the rows, which no template reads."""
    pairs = [{"clean_prompt": "a", "perturbed_prompt": "b", "completion": "c"}]
    with pytest.raises(InvalidPairsError, match="row 0: `chat_template_kwargs` is given, but the prompts are text"):
        convert_pairs(pairs, "sft", chat_template_kwargs={"enable_thinking": False})


def test_content_blocks_become_text():
    """Templates of text models write a list as Python does, brackets and all."""
    blocks = [{"type": "text", "text": "Lyon? "}, {"type": "text", "text": "Capital?"}]
    answer = {"role": "assistant", "content": [{"type": "text", "text": "Paris."}], "reasoning_content": "Hm."}
    pair = {
        "clean_prompt": user("Capital?"),
        "perturbed_prompt": [{"role": "user", "content": blocks}],
        "completion": [answer],
    }
    (made,) = convert_pairs([pair], "sft").rows
    assert made == {"prompt": user("Lyon? Capital?"), "completion": [{**answer, "content": "Paris."}]}


def test_rows_with_other_template_variables_are_told():
    pairs = [
        capital(f"{row}?", "Rome!", completion="Oslo.", chat_template_kwargs={"no_think": True} if row else None)
        for row in range(3)
    ]
    (warning,) = convert_pairs(pairs, "sft").warnings
    assert warning.startswith("1 of 3 row(s) lack a variable of the chat template that others have (no_think).")
    assert convert_pairs(pairs[1:], "sft").warnings == []
    assert convert_pairs(pairs, "sft", chat_template_kwargs={"no_think": False}).warnings == []


def test_variables_that_all_rows_replace_are_told():
    pairs = [
        capital(f"{row}?", "Rome!", completion="Oslo.", chat_template_kwargs={"no_think": False}) for row in range(2)
    ]
    (warning,) = convert_pairs(pairs, "sft", chat_template_kwargs={"no_think": True}).warnings
    assert warning.startswith(
        '`chat_template_kwargs` is `{"no_think": true}`, and every row has `{"no_think": false}` of its own'
    )


def test_tool_call_is_not_called_empty():
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "search", "arguments": {}}}]}
    found = convert_pairs([capital("1?", "Rome!", completion=[call])], "sft")
    assert found.reasons() == {conversion.CALL: 1}


def test_preferences_and_what_is_left_out(model, tokenizer, says):
    answers = {
        "1?": "Paris.", "Rome! 1?": "Rome.",  # a preference
        "2?": "Paris.", "Rome! 2?": "Paris.",  # the same words
        "3?": "Paris.", "Rome! 3?": "It is Paris.",  # the same in other words
        "4?": "Paris.", "Rome! 4?": "Paris or Rome.",  # not read, so perhaps not the same
        "5?": "", "Rome! 5?": "Rome.",
        "6?": "Paris. " * 8, "Rome! 6?": "Rome.",  # cut at 16 tokens
        "7?": "Bern.", "Rome! 7?": "Oslo.",  # neither is a possible answer: not the same
        "8?": "Rome.", "Rome! 8?": "Paris.",  # whatever the clean answer says is chosen
        "9?": "Sorry, I can't.", "Rome! 9?": "I can't help.",  # two refusals
    }  # fmt: skip
    pairs = [capital(f"{number}?", "Rome!", source_id=f"source {number}") for number in range(1, 9)]
    pairs.append(capital("9?", "Rome!", source_id="source 9", answer="", biased_answer="", category="harmful"))
    says(answers, [])
    found = convert_pairs(pairs, "preference", model, tokenizer, AnswerOptions(16, progress=False))
    assert [of["source_id"] for of in found.rows] == ["source 1", "source 4", "source 7", "source 8"]
    assert found.rows[0] == {
        "prompt": user("Rome! 1?"), "chosen": assistant("Paris."), "rejected": assistant("Rome."),
        "clean_prompt": user("1?"), "chosen_outcome": "right", "rejected_outcome": "suggested",
        "answer": "Paris", "biased_answer": "Rome", "category": "", "source_id": "source 1",
    }  # fmt: skip
    assert found.outcomes() == Counter(
        {("right", "suggested"): 1, ("right", "unread"): 1, ("other", "other"): 1, ("suggested", "right"): 1}
    )
    assert {of["source_id"]: of["reason"] for of in found.left_out} == {
        "source 2": conversion.SAME_WORDS, "source 3": conversion.SAME_ANSWER, "source 5": conversion.EMPTY,
        "source 6": conversion.CUT, "source 9": conversion.SAME_ANSWER,
    }  # fmt: skip
    assert found.reasons()[conversion.SAME_ANSWER] == 2
    assert [found.left_out[1][key] for key in ("clean_answer", "perturbed_answer")] == ["Paris.", "It is Paris."]
    assert len(found.rows) + len(found.left_out) == len(pairs)


def test_a_users_columns_by_the_names_of_ours(model, tokenizer, says):
    says({"1?": "Paris.", "Rome! 1?": "Paris."}, [])
    own = {"reason": "hard", "clean_answer": "mine", "own_reason": "easy"}
    found = convert_pairs([capital("1?", "Rome!", **own)], "preference", model, tokenizer)
    assert found.reasons() == {conversion.SAME_WORDS: 1}
    (row,) = found.left_out
    expected = {
        "clean_answer": "Paris.", "own_clean_answer": "mine", "own_reason": "easy", "own_own_reason": "hard",
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected


def test_what_is_rejected_is_warned_about(model, tokenizer, says):
    said = {"1?": "Paris.", "Rome! 1?": "", "2?": "Paris.", "Rome! 2?": "Rome. " * 20}
    said |= {"3?": "Paris.", "Rome! 3?": "[THINK]Hm.[/THINK] Rome."}
    says(said, [])
    pairs = [capital(f"{number}?", "Rome!") for number in range(1, 4)]
    options = AnswerOptions(40, progress=False)
    warnings = convert_pairs(pairs, "preference", model, tokenizer, options).warnings
    assert [warning[:63] for warning in warnings] == [
        "1 of 6 answer(s) hold a thought between [THINK] and [/THINK], w",
        "1 of 3 rejected answer(s) are empty, or a thought without an an",
        "1 of 3 rejected answer(s) were cut at `max_completion_length`, ",
    ]
    options = AnswerOptions(40, progress=False, thinking_markers=("[THINK]", "[/THINK]"))
    assert len(convert_pairs(pairs, "preference", model, tokenizer, options).warnings) == 2


def test_a_template_that_writes_no_end_is_told(model, monkeypatch):
    """GLM-4.5's: TRL's rows have no end, and cut ones were said to get one."""
    tokenizer = make_tokenizer(CHATML.replace("'<|im_end|>\n' }}", "'' }}"))
    options = AnswerOptions(40, progress=False)

    def generate(model, processing_class, prompts, *args, **kwargs):
        texts = ["Rome. " * 20 if "Rome!" in tokenizer.decode(prompt) else "Paris." for prompt in prompts]
        return [tokenizer(text=text, add_special_tokens=False)["input_ids"][:40] for text in texts]

    monkeypatch.setattr(answering, "generate_ids", generate)
    no_end, cut = convert_pairs([capital("1?", "Rome!")], "preference", model, tokenizer, options).warnings
    assert no_end.startswith("The chat template writes no end after an answer, and TRL adds none: training does not")
    assert cut == "1 of 1 rejected answer(s) were cut at `max_completion_length`."
    assert convert_pairs([capital("1?", "Rome!")], "sft", model, tokenizer, options).warnings == [no_end]
    given = [capital("1?", "Rome!") | {"completion": [{"role": "assistant", "content": "Paris."}]}]
    assert convert_pairs(given, "sft", tokenizer=tokenizer).warnings == [no_end]


def test_a_thought_without_an_answer_is_not_chosen(model, tokenizer, says):
    says(
        {"1?": "<think>Paris?", "Rome! 1?": "Rome.", "2?": "<think>Hm.</think> Paris.", "Rome! 2?": "<think>Rome?"}, []
    )
    pairs = [capital(f"{number}?", "Rome!") for number in (1, 2)]
    found = convert_pairs(pairs, "preference", model, tokenizer, AnswerOptions(40, progress=False))
    assert found.reasons() == {conversion.UNFINISHED: 1}
    assert [of["prompt"] for of in found.rows] == [user("Rome! 2?")]
    assert list(found.warnings) == ["1 of 1 rejected answer(s) are empty, or a thought without an answer."]


THINKS = "<think>", "</think>"
GEMMA_4 = "<|channel>thought", "<channel|>"
GPT_OSS = "<|channel|>analysis", "<|channel|>final<|message|>"
MUSE = "to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"


@pytest.fixture
def thinks(monkeypatch):
    """What a model says to clean prompts, and to those with a cue, under a chat template of TRL; converts two pairs."""

    def convert(template, markers, clean, perturbed, **columns):
        tokenizer = trl_tokenizer(template)
        pairs = [capital(f"{number}?", "Rome!", **columns) for number in (1, 2)]

        def generate(model, processing_class, prompts, *args, **kwargs):
            texts = [perturbed if "Rome!" in tokenizer.decode(prompt) else clean for prompt in prompts]
            return [[*tokenizer(text=text)["input_ids"], tokenizer.eos_token_id] for text in texts]

        monkeypatch.setattr(answering, "generate_ids", generate)
        options, model = AnswerOptions(100, thinking_markers=markers, progress=False), make_model(256 + 1000)
        model.config.max_position_embeddings = 4096
        return convert_pairs(pairs, "preference", model, tokenizer, options), tokenizer

    return convert


@pytest.mark.parametrize(
    ("template", "markers", "written"),
    [
        ("nemotron_3_nano", THINKS, "Hm.\n</think>\n\n{}"),  # the prompt opens the thought, and the answer has to
        ("qwen3_8", THINKS, "Hm.\n</think>\n\n{}"),  # would write an empty thought before it
        ("qwen3_5_think", THINKS, "Hm.\n</think>\n\n{}"),
        ("qwen3", THINKS, "<think>\nHm.\n</think>\n\n{}"),
        ("qwen3", THINKS, "{}"),  # writes an empty thought before it
        ("glm4moe", THINKS, "\n<think>Hm.</think>\n{}"),
        ("gemma4_v5", GEMMA_4, "<|channel>thought\nHm.<channel|>{}"),  # keeps thoughts beside the content alone
        ("gptoss", GPT_OSS, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{}"),
        ("gptoss", GPT_OSS, "<|channel|>final<|message|>{}"),
        ("gptoss", THINKS, "<|channel|>final<|message|>{}"),
        ("muse_glimmer", MUSE, " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>{}"),
        ("muse_glimmer", THINKS, " to=user<|message|>{}"),
    ],
)
def test_trl_renders_thoughts_and_headers_as_the_model_wrote_them(thinks, template, markers, written):
    """Their beginning was missing, or the thought, or the header stood in the answer a second time, as its words."""
    said = [written.format(answer) for answer in ("Paris.", "Rome.")]
    found, tokenizer = thinks(template, markers, *said)
    assert [(of["chosen_outcome"], of["rejected_outcome"]) for of in found.rows] == [("right", "suggested")] * 2
    for of in found.rows:
        prompt = tokenizer.apply_chat_template(of["prompt"], add_generation_prompt=True, tokenize=False)
        for reply, wanted in zip((of["chosen"], of["rejected"]), said, strict=True):
            text = "".join(tokenizer.apply_chat_template(of["prompt"] + reply, tokenize=False).split())
            begun, wanted = ("".join(part.split()) for part in (prompt, wanted))
            empty = "" if f"{begun}{wanted}" in text else "<think></think>"
            assert text.startswith(f"{begun}{empty}{wanted}")


@pytest.mark.parametrize(
    ("template", "markers", "written"),
    [
        ("deepseek_r1_distill", THINKS, "Hm.\n</think>\n\n{}"),
        ("gemma4", GEMMA_4, "<|channel>thought\nHm.<channel|>{}"),
        ("gemma4", THINKS, "<|channel>thought\nHm.<channel|>{}"),
        ("gptoss", THINKS, "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>{}"),
    ],
)
def test_answers_of_which_the_template_would_lose_a_part_are_left_out(thinks, template, markers, written):
    """TRL trained on the answers without the thoughts that stand in the file, or on their markers as words."""
    said = [written.format(answer) for answer in ("Paris.", "Rome.")]
    assert thinks(template, markers, *said)[0].reasons() == {conversion.CHANGED: 2}
    assert thinks(template, markers, said[0], "Rome.")[0].reasons() == {conversion.CHANGED: 2}


@pytest.mark.parametrize(
    ("template", "completion", "is_kept"),
    [
        ("deepseek_r1_distill", "Hm.\n</think>\n\nParis.", False),
        ("deepseek_r1_distill", "Paris.", False),  # the prompt ends inside a thought
        ("nemotron_3_nano", "Paris.", True),
        ("nemotron_3_nano", "Hm.\n</think>\n\nParis.", True),
        ("nemotron_3_nano", assistant("Hm.\n</think>\n\nParis."), True),
        ("qwen3_8", "<think>\nHm.\n</think>\n\nParis.", True),
        ("qwen3", [{"role": "assistant", "content": "Paris.", "reasoning_content": "Hm."}], True),
        ("qwen2_5", [{"role": "assistant", "content": "Paris.", "reasoning_content": "Hm."}], False),
        ("gptoss", "Paris.", True),
    ],
)
def test_given_answers_of_which_the_template_would_lose_a_part(template, completion, is_kept):
    tokenizer = trl_tokenizer(template)
    found = convert_pairs([capital("1?", "Rome!", completion=completion)], "sft", tokenizer=tokenizer)
    assert found.reasons() == ({} if is_kept else {conversion.CHANGED: 1})


def test_targets_with_a_header_lose_it():
    tokenizer = trl_tokenizer("gptoss")
    ids = [*tokenizer("<|channel|>final<|message|>Paris.")["input_ids"], tokenizer.eos_token_id]
    for text in ("finalParis.", "Paris."):
        pairs = [capital("1?", "Rome!", completion=text, completion_ids=ids)]
        (of_pair,) = convert_pairs(pairs, "sft", tokenizer=tokenizer).rows
        assert of_pair["completion"] == assistant("Paris.")


def marked_tokenizer():
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|im_start|>", "[THINK]", "[/THINK]", "[TOOL_CALLS]"]}
    )
    return tokenizer


MARKED = AnswerOptions(64, thinking_markers=("[THINK]", "[/THINK]"), progress=False)


@pytest.mark.parametrize("kind", ["chat", "text"])
@pytest.mark.parametrize("clean", ["[THINK]Paris? Yes.[/THINK]Paris.", 'Paris.[TOOL_CALLS][{"name": "search"}]'])
def test_markers_that_are_special_tokens_stay(model, monkeypatch, kind, clean):
    """Such as Magistral's. Without them, a thought was a part of the answer that is trained on: "Paris? Yes.Paris."."""
    tokenizer = marked_tokenizer()
    answers = {"1?": clean, "Rome! 1?": "[THINK]Hm.[/THINK]Rome.<|im_start|>"}
    ids = {
        tuple(render_prompt(tokenizer, user(prompt) if kind == "chat" else prompt)): [
            *tokenizer(text=answer, add_special_tokens=False)["input_ids"],
            tokenizer.eos_token_id,
        ]
        for prompt, answer in answers.items()
    }
    monkeypatch.setattr(answering, "generate_ids", lambda a, b, prompts, *others: [ids[tuple(of)] for of in prompts])
    asked = capital("1?", "Rome!")
    if kind == "text":
        asked |= {"clean_prompt": "1?", "perturbed_prompt": "Rome! 1?"}
    (of_pair,) = convert_pairs([asked], "preference", model, tokenizer, MARKED).rows
    said = [of if kind == "text" else of[0]["content"] for of in (of_pair["chosen"], of_pair["rejected"])]
    assert said == [clean, "[THINK]Hm.[/THINK]Rome."]
    assert (of_pair["chosen_outcome"], of_pair["rejected_outcome"]) == ("right", "suggested")


@pytest.mark.parametrize("is_message", [False, True])
def test_markers_of_targets_come_from_their_tokens(model, monkeypatch, is_message):
    """`trl-consistency targets` writes the text without special tokens: "Rome? No.Paris." was read as two answers."""
    tokenizer = marked_tokenizer()
    encode = lambda text: tokenizer(text=text, add_special_tokens=False)["input_ids"]  # noqa: E731
    ids = [*encode("[THINK]Rome? No.[/THINK]Paris."), tokenizer.eos_token_id]
    monkeypatch.setattr(answering, "generate_ids", lambda a, b, prompts, *others: [encode("Rome.") for _ in prompts])
    text = tokenizer.decode(ids, skip_special_tokens=True)
    pairs = [capital("1?", "Rome!", completion=assistant(text) if is_message else text, completion_ids=ids)]
    (of_pair,) = convert_pairs(pairs, "preference", model, tokenizer, MARKED).rows
    assert of_pair["chosen"] == assistant("[THINK]Rome? No.[/THINK]Paris.")
    assert of_pair["chosen_outcome"] == "right"


@pytest.mark.parametrize("is_message", [False, True])
def test_targets_need_the_tokenizer_that_says_what_their_tokens_hold(is_message):
    """Without it, `convert --to sft` took the thought for a part of the answer: "Rome? No.Paris."."""
    tokenizer = marked_tokenizer()
    ids = [*tokenizer(text="[THINK]Rome? No.[/THINK]Paris.", add_special_tokens=False)["input_ids"], 2]
    text = tokenizer.decode(ids, skip_special_tokens=True)
    pairs = [capital("1?", "Rome!", completion=assistant(text) if is_message else text, completion_ids=ids)]
    with pytest.raises(
        ConsistencyError, match="`tokenizer` is needed: `pairs` has `completion_ids`, and only the tok"
    ):
        convert_pairs(pairs, "sft", options=MARKED)
    (of_pair,) = convert_pairs(pairs, "sft", tokenizer=tokenizer, options=MARKED).rows
    assert of_pair["completion"] == assistant("[THINK]Rome? No.[/THINK]Paris.")


@pytest.mark.parametrize("has_ids", [True, False])
def test_given_answers_with_thoughts_between_other_markers_are_told(has_ids):
    tokenizer, text = marked_tokenizer(), "[THINK]Rome? No.[/THINK]Paris."
    target = {"completion": text}
    if has_ids:
        ids = [*tokenizer(text=text, add_special_tokens=False)["input_ids"], 2]
        target = {"completion": tokenizer.decode(ids, skip_special_tokens=True), "completion_ids": ids}
    found = convert_pairs([capital("1?", "Rome!", **target)], "sft", tokenizer=tokenizer)
    assert any("1 of 1 answer(s) hold a thought between [THINK] and [/THINK], w" in of for of in found.warnings)


def test_tokens_of_another_tokenizer_are_refused(tokenizer):
    """Those of two markers would be words of another one, and the thought would stay a part of the answer."""
    ids = tokenizer(text="Oslo.", add_special_tokens=False)["input_ids"]
    pairs = [capital("1?", "Rome!", completion=text, completion_ids=ids) for text in ("Oslo.", "Paris.")]
    with pytest.raises(InvalidPairsError, match="row 1: `completion` and `completion_ids` differ"):
        convert_pairs(pairs, "sft", tokenizer=tokenizer)


def test_anchors_have_no_preference(model, tokenizer):
    found = convert_pairs([row("What?", "What?")], "preference", model, tokenizer, OPTIONS)
    assert not found.rows
    assert found.left_out[0]["reason"] in (conversion.SAME_WORDS, conversion.CUT)


def test_prompt_to_continue_is_left_out_before_it_is_answered(model, tokenizer, says):
    asked = []
    says({"1?": "Paris.", "Rome! 1?": "Rome."}, asked)
    prefilled = {**row("2?", "2?"), "perturbed_prompt": [*user("2?"), *assistant("Sure, ")]}
    found = convert_pairs([prefilled, row("1?", "Rome! 1?")], "preference", model, tokenizer, OPTIONS)
    assert [of["prompt"] for of in found.rows] == [user("Rome! 1?")]
    assert found.reasons() == {conversion.PREFILLED: 1}
    assert len(asked) == 2


def test_given_answers_are_taken_and_not_asked_for(model, tokenizer, says):
    asked = []
    says({"Rome! 1?": "Rome.", "Rome! 2?": "Rome."}, asked)
    given = [capital("1?", "Rome!", completion="Paris."), capital("2?", "Rome!", completion="Paris!")]
    found = convert_pairs(given, "preference", model, tokenizer, OPTIONS)
    assert [(of["chosen"], of["rejected"]) for of in found.rows] == [
        (assistant("Paris."), assistant("Rome.")), (assistant("Paris!"), assistant("Rome."))
    ]  # fmt: skip
    assert len(asked) == 2
    assert "completion" not in found.rows[0]


def test_sft_asks_only_for_clean_answers(model, tokenizer, says):
    asked = []
    says({"1?": "Paris.", "2?": ""}, asked)
    found = convert_pairs([capital("1?", "Rome!"), capital("2?", "Rome!")], "sft", model, tokenizer, OPTIONS)
    assert [(of["prompt"], of["completion"]) for of in found.rows] == [(user("Rome! 1?"), assistant("Paris."))]
    assert found.reasons() == {conversion.EMPTY: 1}
    assert asked == [render_prompt(tokenizer, user(prompt)) for prompt in ("1?", "2?")]


def test_swapped_prompts_are_warned_of():
    """What the cue makes the model say would be chosen."""
    right = capital("France?", "Rome!", completion=assistant("Paris"))
    swapped = right | {"clean_prompt": right["perturbed_prompt"], "perturbed_prompt": right["clean_prompt"]}
    said = "1 row(s) have their cue in the clean prompt and not in the perturbed one: the two columns are swapped."
    assert said in convert_pairs([swapped], "sft").warnings
    assert said not in convert_pairs([right], "sft").warnings


def test_sft_with_targets_needs_no_model():
    given = [row("1?", "Rome! 1?", completion=assistant("Paris."))]
    assert convert_pairs(given, "sft").rows == [{"prompt": user("Rome! 1?"), "completion": assistant("Paris.")}]
    text = [{"clean_prompt": "1", "perturbed_prompt": "2", "completion": " Paris"}]
    assert convert_pairs(text, "sft").rows == [{"prompt": "2", "completion": " Paris"}]


def quiet(config, folder):
    options = {name: value for name, value in QUIET.items() if name != "max_completion_length"}
    return config(output_dir=str(folder), max_steps=1, per_device_train_batch_size=2, **options)


def ended(ids, tokenizer):
    """What the chat template writes after the end of the turn is the trainer's."""
    assert tokenizer.eos_token_id in ids
    return ids[: ids.index(tokenizer.eos_token_id) + 1]


PERSONA = "{%- if persona %}<|im_start|>system\n{{ persona }}<|im_end|>\n{% endif -%}"
VARIABLES = {"persona": "You are a helpful assistant."}
TOOLS = [{"name": "search", "parameters": {"query": "text"}}, {"name": "count"}]


def test_tools_have_no_keys_of_other_rows():
    """Arrow gives every schema the keys of all, and null; TRL would render them."""
    pairs = make_pairs(2).add_column("tools", [[{"name": "f", "a": 1}], [{"name": "g", "b": {"c": 2}}]])
    rows = convert_pairs(pairs, "sft").rows
    assert [json.loads(row["tools"]) for row in rows] == [[{"name": "f", "a": 1}], [{"name": "g", "b": {"c": 2}}]]


def test_a_variable_that_arrow_fills_in_does_not_replace_the_runs():
    """The answers were made with the run's, and TRL trained without it."""
    pairs = make_pairs(2).add_column("chat_template_kwargs", [{"no_think": None, "persona": "A"}] * 2)
    rows = convert_pairs(pairs, "sft", chat_template_kwargs={"no_think": True}).rows
    assert [row["chat_template_kwargs"] for row in rows] == [{"no_think": True, "persona": "A"}] * 2


@pytest.mark.parametrize("kind", ["chat", "tools and variables", "text"])
def test_trl_trains_on_what_the_model_said(model, model_dir, tmp_path, monkeypatch, kind):
    """Its tokens are those of the perturbed prompt as it is rendered here, then those that the model gave."""
    tokenizer = make_tokenizer(PERSONA + CHATML)
    pairs = list(make_pairs(4, completion=False, chat=kind != "text"))
    columns = {"tools": TOOLS, "chat_template_kwargs": VARIABLES} if kind.startswith("tools") else {}
    pairs = [of | columns for of in pairs]
    rendering = list(columns.values())
    prompts = [(render_prompt(tokenizer, of["clean_prompt"], *rendering), of) for of in pairs]
    said = {tuple(ids): f" City {number}." for number, (ids, _) in enumerate(prompts)}

    def generate(model, processing_class, asked, *args, **kwargs):
        texts = [said.get(tuple(prompt), " Lyon.") for prompt in asked]
        return [
            [*tokenizer(text=text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id] for text in texts
        ]

    monkeypatch.setattr(answering, "generate_ids", generate)
    found = {to: convert_pairs(pairs, to, model, tokenizer, OPTIONS).rows for to in conversion.FORMATS}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(of) + "\n" for of in found["preference"]))
    preferences = Dataset.from_json(str(path), cache_dir=str(tmp_path / "cache"))
    name, options = str(model_dir), {"processing_class": tokenizer}
    trainer = DPOTrainer(name, args=quiet(DPOConfig, tmp_path), train_dataset=preferences, **options)
    sft = Dataset.from_list(found["sft"])
    sft_trainer = SFTTrainer(name, args=quiet(SFTConfig, tmp_path), train_dataset=sft, **options)
    for number, of in enumerate(pairs):
        prompt_ids = render_prompt(tokenizer, of["perturbed_prompt"], *rendering)
        # A chat model's answer is stripped, a text prompt is continued with the space.
        text = f" City {number}." if kind == "text" else f"City {number}."
        expected = render_completion(tokenizer, of["perturbed_prompt"], text, *rendering)
        made, completion = trainer.train_dataset[number], sft_trainer.train_dataset[number]
        assert made["prompt_ids"] == prompt_ids
        assert ended(made["chosen_ids"], tokenizer) == ended(expected, tokenizer)
        assert tokenizer.decode(ended(made["rejected_ids"], tokenizer)).strip() == "Lyon.<|im_end|>"
        assert completion["input_ids"][: len(prompt_ids)] == prompt_ids
        assert ended(completion["input_ids"][len(prompt_ids) :], tokenizer) == ended(expected, tokenizer)
    assert trainer.train().training_loss > 0


def test_variables_of_a_rendered_set_are_in_its_rows(model, monkeypatch):
    """The model answered prompts with them, and would be trained on prompts without."""
    tokenizer, pairs, asked = make_tokenizer(PERSONA + CHATML), make_pairs(2, completion=False), []

    def generate(model, processing_class, prompts, *args, **kwargs):
        asked.extend(prompts)
        return [[*tokenizer(text="Lyon.")["input_ids"], tokenizer.eos_token_id]] * len(prompts)

    monkeypatch.setattr(answering, "generate_ids", generate)
    rendered = PairSet.of(pairs).rendered(tokenizer, chat_template_kwargs=VARIABLES)
    found = convert_pairs(rendered, "sft", model, tokenizer, OPTIONS)
    assert asked[0] == render_prompt(tokenizer, pairs[0]["clean_prompt"], None, VARIABLES)
    assert [of["chat_template_kwargs"] for of in found.rows] == [VARIABLES] * 2
    assert found.rows == convert_pairs(pairs, "sft", model, tokenizer, OPTIONS, VARIABLES).rows


def test_text_goes_on_with_the_space_that_an_answer_alone_would_lose():
    """A tokenizer in SentencePiece's manner, which writes no space before its first word."""
    backend = Tokenizer(models.WordLevel({"▁Say": 0, "▁A": 1, "▁B": 2}))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    assert tokenizer.decode([1, 2]) == "A B"
    assert continuation(tokenizer, [0], (1, 2), True, "A B") == " A B"


@pytest.mark.parametrize(
    ("pairs", "to", "message"),
    [
        ([row("1?", "2?")], "dpo", "`to` must be 'preference' or 'sft', got 'dpo'."),
        ([row("1?", "2?")], "sft", "`model` and `tokenizer` are needed: there are answers to generate."),
        ([row("1?", "2?", completion="x")], "preference", "`model` and `tokenizer` are needed"),
        ([row("1?", "2?", input_ids=[1])], "sft", "`pairs` has the column `input_ids`, which has a meaning in TRL's"),
        (
            [row("1?", "2?", ref_chosen_logps=1.0)],
            "preference",
            "`pairs` has the column `ref_chosen_logps`, which has",
        ),
        ([row("1?", "2?", chosen_outcome="x")], "preference", "`chosen_outcome`, which the preferences have: rename"),
        ([row("1?", "2?", chosen="x")], "sft", "`pairs` has the column `chosen`, which has a meaning in TRL's format"),
        ([row("1?", "2?", completion_ids=[5])], "sft", "`pairs` has `completion_ids` without `completion`"),
        (
            [row("1?", "2?", completion="x"), row("1?", "2?", completion=" ")],
            "sft",
            "1 of 2 row.* row 1: `completion` is empty or blank",
        ),
        ([{**row("1?", "2?"), "clean_prompt": None}], "preference", "row 0: `clean_prompt` is missing"),
    ],
)
def test_faulty_input(pairs, to, message):
    with pytest.raises((ConsistencyError, InvalidPairsError), match=message):
        convert_pairs(pairs, to)


@pytest.mark.parametrize("option", ["multiple_choice", "free_answers"])
def test_answers_that_are_scored_are_none_to_learn_from(model, tokenizer, option):
    """Letters alone were written as what the model had said."""
    with pytest.raises(ConsistencyError, match=f"`{option}` is logprob, which scores answers and writes none"):
        convert_pairs([row("1?", "2?")], "sft", model, tokenizer, AnswerOptions(**{option: "logprob"}))


def test_the_base_model_with_an_adapter_in_it_is_warned_about(tokenizer):
    """The answers to learn from were those of the adapter."""
    base = make_model()
    get_peft_model(base, LoraConfig(target_modules="all-linear"))
    with pytest.warns(UserWarning, match="The model contains an adapter and answers with it"):
        convert_pairs([row("What?", "Rome? What?")], "sft", base, tokenizer, OPTIONS)
