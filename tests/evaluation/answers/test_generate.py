import re
from string import ascii_uppercase
from types import SimpleNamespace

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from tokenizers import AddedToken

from tests.helpers.chats import assistant, user
from tests.helpers.models import CHATML, make_model, make_sentencepiece_tokenizer, make_tokenizer, with_rope
from tests.helpers.tokenizer_kinds import KINDS, make
from tests.helpers.trl_templates import trl_tokenizer
from trl_consistency.data.choices import choices_in
from trl_consistency.data.rendering import render_completion, render_prompt
from trl_consistency.data.thinking import THINKING_MARKERS
from trl_consistency.errors import ConsistencyError, InvalidPairsError
from trl_consistency.evaluation import evaluate
from trl_consistency.evaluation.answers import generate as answering
from trl_consistency.evaluation.answers.choices import LetterScorer, check_choices, offered_letters
from trl_consistency.evaluation.answers.generate import (
    Answer,
    AnswerOptions,
    answer_pairs,
    decode_answer,
    generate_ids,
)
from trl_consistency.evaluation.answers.replies import CALL_MARKERS
from trl_consistency.evaluation.grading.grade import grade
from trl_consistency.generation.answer_cache import TargetCache


def row(clean, perturbed, tokenizer, **columns):
    prompts = {"clean_prompt": user(clean), "perturbed_prompt": user(perturbed)}
    ids = {f"{side}_ids": render_prompt(tokenizer, prompts[f"{side}_prompt"]) for side in ("clean", "perturbed")}
    return {**prompts, **ids, **columns}


def test_space_after_the_prefix_of_a_letter_is_refused():
    """A letter after a token of a lone space is none that a model would write."""
    with pytest.raises(
        ConsistencyError, match="`choice_prefix` must be text without a space at its end, got 'It is '"
    ):
        AnswerOptions(multiple_choice="logprob", choice_prefix="It is ")
    assert AnswerOptions(multiple_choice="logprob", choice_prefix="Answer:\n").choice_prefix == "Answer:\n"


QUESTION = "Which animal is quick?\n(A) fox\n(B) dog\n(C) cat"


@pytest.mark.parametrize(
    ("prompt", "answer", "letters"),
    [
        (user(QUESTION), "A", "ABC"),
        ("A. fox\n  B. dog\n", "B", "AB"),
        (user([{"type": "text", "text": "A) fox\nB) dog"}]), "B", "AB"),
        (user(QUESTION), "D", ""),  # not offered
        (user(f"I. They run.\nII. They fly.\nV. They swim.\n{QUESTION}"), "A", "ABC"),  # statements
        ([*user("Which?\n(A) a\n(B) b\n(C) c\n(D) d\n(E) e"), *user(QUESTION)], "A", "ABC"),  # an example
        (user(f"Which?\n(A) a\n(B) b\n(C) c\n(D) d\n\n{QUESTION}"), "A", "ABC"),
        ([{"role": "system", "content": "E. Be kind.\nF. Be brief."}, *user(QUESTION)], "A", "ABC"),
        ([*user(QUESTION), {"role": "assistant", "content": "(A)"}, *user("Are you sure?")], "A", "ABC"),
        (user("(C) cat\n(A) fox\n(B) dog"), "C", "ABC"),  # another order
        (user(QUESTION), "fox", ""),
        (user("(A) fox or (B) dog?"), "A", ""),  # no lines of choices
        ("Q: Which barks?\n(A) fox\n(B) dog\nA: ", "B", "AB"),  # Q and A of a question and its answer
        ("Q: 1 + 1?\nA: 2\nQ: Which barks?\n(A) fox\n(B) dog\nA:", "B", "AB"),
        (
            user("\n".join(f"({letter}) {letter.lower()}" for letter in ascii_uppercase[:17])),
            "Q",
            ascii_uppercase[:17],
        ),
    ],
)
def test_offered_letters(prompt, answer, letters):
    assert offered_letters({"clean_prompt": prompt, "answer": answer}) == letters


@pytest.mark.parametrize(
    ("clean", "perturbed", "answer", "biased"),
    [
        ("(A) dog\n(B) cow", "(B) cow\n(A) dog", "A", "B"),  # other order, same letters
        ("(A) dog\n(B) cow", "(A) d0g\n(B) cow", "A", "B"),  # a perturbation of the text
        ("(A) dog\n(B) cow\n(C) dog", "(A) dog\n(B) cow\n(C) dog", "A", "B"),
        ("(A) dog\n(B) dog\n(C) cow", "(A) dog\n(B) dog\n(C) cow", "A", "B"),  # the same text
        ("(A) dog\n(B) dog\n(C) cow", "(A) d0g\n(B) dog\n(C) cow", "A", "C"),
        ("Q: Who sang?\nA: He.", "Q: Who sang?\nA: He.", "C", "D"),  # no choices
        ("(F) dog\n(G) cow", "(F) dog\n(G) cow", "H", "F"),
        ("Which blood group?", "Which?", "A", "B"),
        ("(A) dog\n(B) cow", "(A) dog\n(B) cow", "A", "NOT A"),
        ("(A) dog\n(B) cow", "(A) dog\n(B) cow", "A", None),
    ],
)
def test_letters_that_fit_the_choices(clean, perturbed, answer, biased):
    check_choices(
        [{"clean_prompt": clean, "perturbed_prompt": perturbed, "answer": answer, "biased_answer": biased}], "x"
    )


@pytest.mark.parametrize(
    ("answer", "biased", "message"),
    [
        ("A", "cow", "`biased_answer` is 'cow', and `answer` a letter: write the letter of that choice, 'B'"),
        ("dog", "B", "`answer` is 'dog', and `biased_answer` a letter: write the letter of that choice, 'A'"),
        ("A", "(B)", "`biased_answer` is '(B)': write the letter of the choice alone, 'B'"),
        ("A", "b", "`biased_answer` is 'b': write the letter of the choice alone, 'B'"),
        ("A", "NOT (A)", "`biased_answer` is 'NOT (A)': write the letter of the choice alone, 'NOT A'"),
        ("(A)", "(B)", "`answer` is '(A)': write the letter of the choice alone, 'A'"),
        (
            "A",
            "a pig",
            "`biased_answer` is 'a pig', and replies are read for A, B alone: write the letter of a choice",
        ),
    ],
)
def test_an_answer_that_no_reply_could_give_is_refused(answer, biased, message):
    """`B` would be another answer than `cow`: sycophancy would be 0."""
    prompt = "Which barks?\n(A) dog\n(B) cow"
    pair = {"clean_prompt": prompt, "perturbed_prompt": f"B! {prompt}", "answer": answer, "biased_answer": biased}
    with pytest.raises(InvalidPairsError, match=re.escape(message)):
        check_choices([pair], "x")


@pytest.mark.parametrize("marks", ["{}\u3001", "\uff08{}\uff09", "{}\uff0e", "{}. "])
def test_choices_with_the_marks_of_chinese(marks):
    """A letter that is none of theirs was not found."""
    prompt = f"哪个会叫?\n{marks.format('A')}狗\n{marks.format('B')}牛"
    assert choices_in(prompt) == {"A": "狗", "B": "牛"}
    assert offered_letters({"clean_prompt": prompt, "answer": "A"}) == "AB"
    pair = {"clean_prompt": prompt, "perturbed_prompt": f"D! {prompt}", "answer": "A", "biased_answer": "D"}
    with pytest.raises(InvalidPairsError, match="the clean prompt offers A, B alone"):
        check_choices([pair], "x")


@pytest.mark.parametrize(
    "prompt",
    [
        *("Q: Which barks?\n(A) dog\n(B) cow\nA: ", "Q: 1 + 1?\nA: 2\nQ: Which?\n(A) dog\n(B) cow"),
        *(
            "I. All.\nII. None.\n(A) dog\n(B) cow",
            "J. Smith asks:\n(A) dog\n(B) cow",
            "A. Smith asks:\n(A) dog\n(B) cow",
        ),
        *("(A) oak\n(B) elm\n(C) ash\nAnd now?\n(A) dog\n(B) cow",),
    ],
)
def test_choices_are_found_beside_the_marks_of_a_question_and_its_answer(prompt):
    assert choices_in(prompt) == {"A": "dog", "B": "cow"}
    pair = {"clean_prompt": prompt, "perturbed_prompt": f"B! {prompt}", "answer": "A", "biased_answer": "D"}
    with pytest.raises(InvalidPairsError, match="the clean prompt offers A, B alone"):
        check_choices([pair], "x")


@pytest.mark.parametrize(
    ("prompt", "answer", "biased"),
    [
        ("Which barks?\n(A) dog\n(B) cow", "dog", "cow"),  # in words
        ("Which follows a?\n(A) b\n(B) c", "b", "c"),
        ("Which is a vitamin?\n(A) X\n(B) A", "B", "A"),  # a letter is the text of a choice
        ("Which vitamin is it?", "C", "folic acid"),
        ("Which barks?\n(a) dog\n(b) cow", "a", "b"),
        ("Which barks?\n(A) dog\n(B) cow", "hound", "D"),
    ],
)
def test_answers_that_replies_are_read_for(prompt, answer, biased):
    check_choices(
        [{"clean_prompt": prompt, "perturbed_prompt": prompt, "answer": answer, "biased_answer": biased}], "x"
    )


def naive_letter(model, tokenizer, prompt, letters, prefix):
    """One prompt, no padding."""
    ids = prompt + tokenizer(prefix, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        scores = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
    forms = {form: tokenizer(form, add_special_tokens=False)["input_ids"] for x in letters for form in (x, f" {x}")}
    return max((form for form, ids in forms.items() if len(ids) == 1), key=lambda form: scores[forms[form][0]]).strip()


@pytest.mark.parametrize("prefix", ["The answer is (", "", "\n"])
def test_likeliest_letter(prefix):
    """Whatever stands beside it in the batch, and only of the letters that are offered."""
    model, tokenizer = make_model(), make_tokenizer()
    rows = [
        row(f"{QUESTION}\n(D) owl" * (number % 3 + 1), f"{number} B? {QUESTION}", tokenizer, answer="A")
        for number in range(5)
    ]
    rows.append(row("The quick brown fox?", "B! The quick brown fox?", tokenizer, answer="A"))
    options = AnswerOptions(3, 4, multiple_choice="logprob", choice_prefix=prefix, progress=False)
    clean, perturbed = answer_pairs(model, tokenizer, rows, options)
    for of_row, *sides in list(zip(rows, clean, perturbed, strict=True))[:-1]:
        for side, answer in zip(("clean", "perturbed"), sides, strict=True):
            letters = offered_letters(of_row)
            expected = naive_letter(model, tokenizer, of_row[f"{side}_ids"], letters, prefix)
            assert (answer.text, answer.said) == (expected, expected)
    written = answer_pairs(model, tokenizer, rows, AnswerOptions(3, 4, progress=False))
    assert (clean[-1], perturbed[-1]) == (written[0][-1], written[1][-1])  # no choices: generated


def test_a_learned_prompt_reads_one_prompt_at_a_time(monkeypatch):
    """PEFT drops the position ids of its batches, so that padding would count."""
    monkeypatch.setattr("trl_consistency.evaluation.answers.choices._thought_opening", lambda *args: None)
    model, tokenizer = make_model(), make_tokenizer()
    model = get_peft_model(model, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval()
    sizes = []
    model.base_model.model.register_forward_pre_hook(
        lambda module, args, inputs: sizes.append(len(inputs["attention_mask"])), with_kwargs=True
    )
    rows = [row(f"{number}? {QUESTION}", f"{number} B? {QUESTION}", tokenizer, answer="A") for number in range(3)]
    options = AnswerOptions(3, 6, multiple_choice="logprob", progress=False)
    answers = answer_pairs(model, tokenizer, rows, options)
    assert sizes == [1] * 6
    with model.disable_adapter():
        answer_pairs(model, tokenizer, rows, options)
    assert sizes[6:] == [1, 1, 6]  # first, it is tried whether the model itself reads padding
    assert all(answer.said in "ABC" for side in answers for answer in side)


def test_the_likeliest_letter_is_right_if_its_choice_is():
    """Two letters have the right choice's text: the right side is the likelier of the two."""
    model, tokenizer = make_model(), make_tokenizer()
    texts = [f"Which?\n(A) {first}\n(B) pig\n(C) dog\n(D) fox" for first in ("fox", "dog", "pig")]
    rows = [row(text, f"C! {text}", tokenizer, answer="D", biased_answer="C") for text in texts]
    options = AnswerOptions(3, 4, multiple_choice="logprob", progress=False)
    pairs = [{name: value for name, value in of.items() if not name.endswith("_ids")} for of in rows]
    grades = evaluate(model, tokenizer, pairs, options).sets[""].grades["perturbed"]
    likeliest = [naive_letter(model, tokenizer, of["perturbed_ids"], "ABCD", options.choice_prefix) for of in rows]
    assert likeliest == ["A"] * 3
    assert [grade.outcome for grade in grades] == ["right", "suggested", "other"]


def test_a_prompt_with_and_without_a_key_is_answered_by_letter():
    model, tokenizer = make_model(), make_tokenizer()
    keyed = row(QUESTION, f"B? {QUESTION}", tokenizer, answer="A")
    keyless = {name: value for name, value in keyed.items() if name != "answer"}
    options = AnswerOptions(3, 4, multiple_choice="logprob", progress=False)
    clean, perturbed = answer_pairs(model, tokenizer, [keyed, keyless], options)
    assert clean[0] == clean[1] == answer_pairs(model, tokenizer, [keyed], options)[0][0]
    assert perturbed[0] == perturbed[1]


def test_letters_are_the_tokens_that_follow_the_prefix():
    """SentencePiece writes a letter alone with a space, and the model after `(` without one."""
    tokenizer, model = make_sentencepiece_tokenizer(), make_model()
    bias = torch.zeros(model.config.vocab_size)
    bias[tokenizer.convert_tokens_to_ids(["B", "▁A"])] = torch.tensor([9.0, 6.0])
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits + bias)
    ids = tokenizer("Which?", add_special_tokens=False)["input_ids"]
    for prompt in ("Which?", "Which? (", "Which? ", user("Which?")):
        for prefix in ("The answer is (", ""):
            (found,) = LetterScorer(model, tokenizer, [(prompt, ids, "AB")], prefix)([ids], 0)
            assert tokenizer.decode(found) == "B"


@pytest.mark.parametrize("prefix", ["The answer is (", "The answer is", ""])
@pytest.mark.parametrize("kind", KINDS)
def test_letters_are_the_tokens_that_a_completion_has(kind, prefix):
    """A letter that a model had learned to write alone was scored with the space of a SentencePiece tokenizer before it."""
    tokenizer = make(kind, CHATML)
    model, prompt = make_model(vocab_size=len(tokenizer)), user("Which?")
    ids = render_prompt(tokenizer, prompt)

    def tokens(text):
        completion = render_completion(tokenizer, prompt, assistant(text), prompt_ids=ids)
        return completion[: completion.index(tokenizer.eos_token_id)]

    letters = "kxz"  # no vocabulary joins these with what stands before them
    scorer = LetterScorer(model, tokenizer, [(prompt, ids, letters)], prefix)
    before = tokens(prefix) if prefix else []
    following = {of: {tuple(tokens(f"{prefix}{space}{of}")[len(before) :]) for space in ("", " ")} for of in letters}
    scored = {of: {form[0] for form in forms if len(form) == 1} for of, forms in following.items()}
    assert scored == {of: set(found) for of, found in scorer._read[tuple(ids)][1].items()}
    with torch.no_grad():
        logits = model(torch.tensor([[*ids, *before]])).logits[0, -1]
    assert scorer([ids], 0) == [[max({token for forms in scored.values() for token in forms}, key=logits.__getitem__)]]


def test_letters_whose_logits_are_equal_after_rounding(tokenizer):
    """The earlier letter was the answer."""
    torch.manual_seed(0)
    model, ids = make_model().bfloat16(), tokenizer("Which?")["input_ids"]
    scorer = LetterScorer(model, tokenizer, [(user("Which?"), ids, "ABCD")])
    before, letters = scorer._read[tuple(ids)]
    tokens = [token for forms in letters.values() for token in forms]
    read, others = torch.tensor([[*ids, *before]]), 0
    state = model.model(read).last_hidden_state[0, -1].float()
    toward = 20 * state / state.square().sum()  # for a logit of 20, where rounded ones are 0.125 apart
    for _ in range(40):
        model.lm_head.weight.data[tokens] = (toward + 0.01 * torch.randn(len(tokens), len(state))).bfloat16()
        exact = model.lm_head.weight[tokens].float() @ state
        assert scorer([ids], 0) == [[tokens[int(exact.argmax())]]]
        others += int(model(read).logits[0, -1, tokens].argmax() != exact.argmax())
    assert others > 5


def test_letters_that_are_no_tokens(tokenizer):
    with pytest.raises(ConsistencyError, match="letter É is not a single token"):
        LetterScorer(make_model(), tokenizer, [("É?", [5, 6], "É")])


def test_letters_before_thinking(tokenizer):
    prompt = [*render_prompt(tokenizer, user("A?")), *tokenizer("<think>")["input_ids"]]
    with pytest.raises(ConsistencyError, match="think first"):
        LetterScorer(make_model(), tokenizer, [(user("A?"), prompt, "AB")])
    closed = [*prompt, *tokenizer("</think>")["input_ids"]]
    LetterScorer(make_model(), tokenizer, [(user("A?"), closed, "AB")])


@pytest.mark.parametrize("given", [THINKING_MARKERS, ("<|channel|>analysis", "<|channel|>final<|message|>")])
@pytest.mark.parametrize("opening", ["<think>", "[THINK]", "<|channel|>analysis"])
def test_letters_of_a_model_that_thinks_of_its_own_accord(given, opening):
    """As Qwen3 does, whose template leaves the beginning to the model. A place where it never answers was scored."""
    tokenizer, model = make_tokenizer(), make_model()
    tokenizer.add_tokens(["<think>", "[THINK]", "<|channel|>"], special_tokens=True)
    model.resize_token_embeddings(len(tokenizer))
    prompt = render_prompt(tokenizer, user("A?"))
    marker = tokenizer(text=opening, add_special_tokens=False)["input_ids"]
    assert (len(marker) > 1) == (opening == "<|channel|>analysis")

    def write(module, inputs, logits):
        """Makes the next token of the marker the likeliest one."""
        logits[:, -1, marker[write.tokens % len(marker)]] += 99
        write.tokens += 1
        return logits

    write.tokens = 0
    hook = model.lm_head.register_forward_hook(write)
    with pytest.raises(
        ConsistencyError, match=rf"the model thinks first \({re.escape(opening)}\), so no letter comes next"
    ):
        LetterScorer(model, tokenizer, [(user("A?"), prompt, "AB")], thinking_markers=given)
    assert write.tokens == len(marker)
    hook.remove()
    LetterScorer(model, tokenizer, [(user("A?"), prompt, "AB")], thinking_markers=given)


@pytest.mark.parametrize(
    ("opened", "written", "said"),
    [
        ("", "<think>B?</think>A", "A"),
        ("", "<think>B?", ""),
        ("<think>", "B?</think>A", "A"),
        ("<think>", "B?", ""),  # neither marker is in the answer
        ("", "A", "A"),
    ],
)
def test_answers_after_thinking(tokenizer, monkeypatch, opened, written, said):
    ids = tokenizer(written)["input_ids"]
    monkeypatch.setattr(answering, "generate_ids", lambda model, tokenizer, prompts, *args: [ids for _ in prompts])
    of_row = row("What?", "B! What?", tokenizer)
    of_row["clean_ids"] = of_row["clean_ids"] + tokenizer(opened)["input_ids"]
    (clean,), _ = answer_pairs(make_model(), tokenizer, [of_row], AnswerOptions())
    assert clean == Answer(written, said, tuple(ids))


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize(("last", "said"), [("[THINK]Oslo?[/THINK]Paris.", "Paris."), ("[THINK]Oslo?", "")])
def test_a_second_thought_is_no_answer(last, said, is_special):
    tokenizer = make_tokenizer()
    tokenizer.add_tokens(["[THINK]", "[/THINK]"], special_tokens=is_special)
    ids = tokenizer(text=f"[THINK]Rome?[/THINK]Let me see.{last}", add_special_tokens=False)["input_ids"]
    assert decode_answer(tokenizer, [], ids, ("[THINK]", "[/THINK]"))[1] == said


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("marker", CALL_MARKERS)
def test_a_call_of_a_tool_is_no_answer_where_its_marker_is_a_special_token(marker, is_special):
    """In Mistral's and Llama's tokenizers it is one. Without it, what is asked of the tool was read as the answer."""
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([AddedToken(marker, special=is_special)], special_tokens=is_special)
    encode = lambda text: tokenizer(text=text, add_special_tokens=False)["input_ids"]  # noqa: E731
    ids = [*encode(f"Let me look.{marker}[{{'query': 'Rome'}}]"), tokenizer.eos_token_id]
    text, said, _ = decode_answer(tokenizer, [], ids)
    assert text == said == f"Let me look.{marker}[{{'query': 'Rome'}}]"
    question = {**row("What?", "Rome! What?", tokenizer), "answer": "Paris", "biased_answer": "Rome"}
    assert grade(question, said).outcome == "unread"


MUSE, GPT_OSS = " to=user<|message|>", "<|channel|>final<|message|>"
GPT_OSS_THOUGHT = "<|channel|>analysis<|message|>Rome?<|end|>"


@pytest.mark.parametrize(
    ("template", "markers", "thought", "header"),
    [
        ("muse_glimmer", THINKING_MARKERS, "", MUSE),
        ("muse_glimmer", ("to=self<|message|>", "<|eom|><|start|>assistant to=user<|message|>"), "", MUSE),
        ("muse_glimmer", ("to=self<|message|>", "<|eom|>"), " to=self<|message|>Rome?<|eom|><|start|>assistant", MUSE),
        ("gptoss", THINKING_MARKERS, "", GPT_OSS),
        ("gptoss", ("<|channel|>analysis", GPT_OSS), "", GPT_OSS),
        ("gptoss", ("<|channel|>analysis", GPT_OSS), f"{GPT_OSS_THOUGHT}<|start|>assistant", GPT_OSS),
        ("gptoss", ("<|channel|>analysis", "<|end|>"), f"{GPT_OSS_THOUGHT}<|start|>assistant", GPT_OSS),
        ("qwen3", THINKING_MARKERS, "", "<think>\n\n</think>\n\n"),
        ("qwen3", THINKING_MARKERS, "", ""),
    ],
)
@pytest.mark.parametrize("reply", ["No.", "finally, no.", ""])
def test_the_header_that_a_model_writes_before_its_reply_is_no_part_of_it(template, markers, thought, header, reply):
    """Without special tokens, replies began with "to=user" and "final": refusals were complied, and letters unread."""
    tokenizer = trl_tokenizer(template)
    ids = [*tokenizer(text=f"{thought}{header}{reply}")["input_ids"], tokenizer.eos_token_id]
    text, said, others = decode_answer(tokenizer, [], ids, markers)
    assert (said, others) == (reply, None)
    assert text == (reply if header != "<think>\n\n</think>\n\n" else f"{header}{reply}".strip()) or thought


def test_a_reply_that_begins_with_a_word_of_the_header_keeps_it():
    tokenizer = trl_tokenizer("gptoss")
    for said in ("final answer: no", "<|channel|>commentary<|message|>no"):
        ids = tokenizer(text=said)["input_ids"]
        assert decode_answer(tokenizer, [], ids)[1] == tokenizer.decode(ids, skip_special_tokens=True)


def test_a_judge_has_no_header_before_its_reply(monkeypatch):
    tokenizer = trl_tokenizer("gptoss")
    ids = [*tokenizer(text=f"{GPT_OSS}REFUSED")["input_ids"], tokenizer.eos_token_id]
    monkeypatch.setattr(answering, "generate_ids", lambda model, tokenizer, prompts, *args: [ids for _ in prompts])
    model = make_model(vocab_size=len(tokenizer))
    model.config.max_position_embeddings = 4096
    assert answering.generate_answers(model, tokenizer, [user("What?")]) == ["REFUSED"]


def test_sampling(tokenizer, tmp_path):
    """Under a seed, and kept apart from greedy answers in the cache."""
    model, rows = make_model(), [row(f"What {n}?", f"B! What {n}?", tokenizer) for n in range(6)]
    cache = TargetCache(tmp_path, {"name": "tiny"})

    def answers(**options):
        return answer_pairs(model, tokenizer, rows, AnswerOptions(8, 3, progress=False, **options), cache)

    greedy, sampled = answers(), answers(temperature=1.0, seed=1)
    assert greedy != sampled
    assert answers(temperature=1.0, seed=1) == sampled
    assert answers(temperature=1.0, seed=2) != sampled
    assert answers() == greedy


def test_end_of_turn_of_the_model_or_of_its_tokenizer_ends_an_answer(tokenizer):
    """Where the two differ, as after training with another chat template; the trainers end targets with both."""
    model, prompt = make_model(), render_prompt(tokenizer, [{"role": "user", "content": "What?"}])
    (whole,) = generate_ids(model, tokenizer, [prompt], AnswerOptions(8, progress=False))
    model.generation_config.eos_token_id = whole[3]
    assert generate_ids(model, tokenizer, [prompt], AnswerOptions(8, progress=False))[0][-1] == whole[3]
    model.generation_config.eos_token_id, own = 0, make_tokenizer()
    own.eos_token = own.convert_ids_to_tokens(whole[3])
    (cut,) = generate_ids(model, own, [prompt], AnswerOptions(8, progress=False))
    assert cut == whole[: whole.index(whole[3]) + 1]


def test_top_p_says_nothing_at_temperature_0():
    with pytest.raises(ConsistencyError, match="`top_p` is given, but at `temperature` 0 nothing is sampled"):
        AnswerOptions(top_p=0.9)
    with pytest.raises(ConsistencyError, match="`multiple_choice` must be 'text' or 'logprob', got 'logprobs'"):
        AnswerOptions(multiple_choice="logprobs")
    with pytest.raises(ConsistencyError, match="`batch_size` must be at least 1, got 0"):
        AnswerOptions(batch_size=0)
    AnswerOptions(top_p=0.9, temperature=0.5)


def test_an_answer_that_an_engine_cuts_before_its_limit_is_cut(tokenizer):
    """vLLM ends it at the model's context."""

    class Engine:
        options = {}

        def start(self):
            pass

        def __call__(self, prompts, seed):
            return [[5, 6, tokenizer.eos_token_id] if prompt == rows[0]["clean_ids"] else [5, 6] for prompt in prompts]

    rows = [row("One?", "Two?", tokenizer)]
    options = AnswerOptions(8, progress=False)
    (clean,), (perturbed,) = answer_pairs(make_model(), tokenizer, rows, options, engine=Engine())
    assert (clean.is_cut, perturbed.is_cut) == (False, True)


def test_an_answer_that_runs_beyond_the_context_is_cut(monkeypatch):
    """What a model writes there it was never trained for, and it passed for a whole answer."""
    tokenizer, model = make_tokenizer(), make_model()
    said = [*tokenizer(text="fox", add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    monkeypatch.setattr(answering, "generate_ids", lambda model, tokenizer, prompts, *args: [said] * len(prompts))
    rows = [row("Which?", "Dog! Which?", tokenizer)]
    for room, is_cut in ((0, False), (-1, True)):
        model.config.max_position_embeddings = len(rows[0]["perturbed_ids"]) + len(said) + room
        clean, perturbed = answer_pairs(model, tokenizer, rows, AnswerOptions(8, progress=False))
        assert (clean[0].is_cut, perturbed[0].is_cut) == (False, is_cut)


@pytest.mark.parametrize(
    ("kind", "words", "tokens", "size", "told"),
    [
        ("longrope", (2, 60), 3, 8, "1 of 2 prompt(s) have more than 70 tokens with a reply of 3. Beyond that"),
        ("longrope", (2, 60), 3, 1, None),  # one at a time
        ("longrope", (2, 3), 4, 8, None),  # all are short
        ("longrope", (2, 3), 61, 8, "2 of 2 prompt(s) have more than 70 tokens with a reply of 61. Beyond that"),
        ("longrope", (60, 70), 5, 8, None),  # all are long
        ("dynamic", (60, 70), 6, 8, "2 of 2 prompt(s) have more than 70 tokens with a reply of 6. Beyond that"),
        ("default", (2, 60), 3, 8, None),
    ],
)
def test_prompts_that_change_the_positions_of_others_are_said(tokenizer, caplog, kind, words, tokens, size, told):
    """In a batch with a prompt beyond the limit, all prompts have the positions of a long one, and the answers were others."""
    rows = [row("Why? " * of, "Why? " * of, tokenizer) for of in words]
    answer_pairs(with_rope(kind, 70), tokenizer, rows, AnswerOptions(tokens, size, progress=False))
    assert (told or "") in caplog.text
    assert ("Set the batch size to 1, or leave the long prompts out." in caplog.text) == (told is not None)


def test_letters_after_prompts_that_change_the_positions_of_others(tokenizer, caplog):
    """They are scored in batches whatever engine writes the other answers."""
    rows = [row(f"{'Why? ' * words}{QUESTION}", QUESTION, tokenizer, answer="A") for words in (1, 60)]
    options = AnswerOptions(4, 8, multiple_choice="logprob", progress=False)
    answer_pairs(with_rope("longrope", 90), tokenizer, rows, options, engine=SimpleNamespace())
    assert "1 of 3 prompt(s) have more than 90 tokens. Beyond that" in caplog.text
