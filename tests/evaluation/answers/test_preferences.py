"""Answer preference, against one forward pass for each answer."""

import warnings

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model

from tests.helpers.chats import assistant, user
from tests.helpers.distributions import make_sharp_model
from tests.helpers.models import CHATML, keeping_all_logits, make_model, make_tokenizer
from tests.helpers.tokenizer_kinds import KINDS, make
from trl_consistency.data.rendering import render_completion, render_prompt
from trl_consistency.errors import ConsistencyError
from trl_consistency.evaluation import evaluate
from trl_consistency.evaluation.answers.generate import AnswerOptions
from trl_consistency.evaluation.answers.preferences import Preference, answer_tokens, prefer_answers


def row(number, answer="Paris", biased="The quick brown fox", **columns):
    question = f"{'Well, ' * (number % 3)}what is the capital of country {number}?"
    return {
        "clean_prompt": user(question),
        "perturbed_prompt": user(f"I say {biased}. {question}"),
        "answer": answer,
        "biased_answer": biased,
        **columns,
    }


ROWS = [row(0), row(1, "New York City", "Rome"), row(2, "Rome", "12", aliases=["Roma", "the Eternal City"]), row(3)]


def rendered(tokenizer, rows):
    sides = ("clean", "perturbed")
    return [of | {f"{side}_ids": render_prompt(tokenizer, of[f"{side}_prompt"]) for side in sides} for of in rows]


def naive_score(model, tokenizer, prompt_ids, prefix, answer):
    """One text at a time: no batch, no padding, the logits of all places."""
    start = prompt_ids + (tokenizer(prefix, add_special_tokens=False)["input_ids"] if prefix else [])
    text = f"{prefix} {answer}" if prefix.strip() and not prefix.endswith("\n") else f"{prefix}{answer}"
    ids = prompt_ids + tokenizer(text, add_special_tokens=False)["input_ids"]
    assert ids[: len(start)] == start
    with torch.no_grad():
        log_probs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
    scores = [log_probs[place - 1, ids[place]].item() for place in range(len(start), len(ids))]
    return sum(scores) / len(scores), len(scores)


@pytest.mark.parametrize("prefix", ["The answer is", "", "\n", "So:\n\n"])
@pytest.mark.parametrize(("batch_size", "keeps_all"), [(1, False), (3, False), (64, False), (1, True), (3, True)])
def test_scores_are_those_of_one_text_at_a_time(tokenizer, prefix, batch_size, keeps_all):
    """Of a model that ignores `logits_to_keep`, the first tokens were scored instead of the last."""
    model = keeping_all_logits(make_model()) if keeps_all else make_model()
    options = AnswerOptions(4, batch_size, answer_prefix=prefix, progress=False)
    rows = rendered(tokenizer, ROWS)
    contrasts = [([of["answer"], *of.get("aliases", [])], of["biased_answer"]) for of in rows]
    found = prefer_answers(model, tokenizer, rows, contrasts, options)
    lengths = set()
    for side in ("clean", "perturbed"):
        for of, (right, suggested), preference in zip(rows, contrasts, found[side], strict=True):
            scores = {
                name: naive_score(model, tokenizer, of[f"{side}_ids"], prefix, name) for name in (*right, suggested)
            }
            lengths |= {length for _, length in scores.values()}
            assert preference.right == pytest.approx(max(scores[name][0] for name in right), abs=1e-4)
            assert preference.suggested == pytest.approx(scores[suggested][0], abs=1e-4)
    assert len(lengths) > 2, "answers of several lengths"


def test_scores_of_a_learned_prompt_do_not_depend_on_the_batch(tokenizer):
    model = get_peft_model(make_sharp_model(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    torch.nn.init.normal_(model.prompt_encoder["default"].embedding.weight)
    rows = rendered(tokenizer, [row(number) for number in (0, 1, 2)])
    contrasts = [(["Paris"], "The quick brown fox")] * 3
    alone, together = (
        prefer_answers(model, tokenizer, rows, contrasts, AnswerOptions(4, size, progress=False)) for size in (1, 64)
    )
    for one, other in zip(alone["clean"] + alone["perturbed"], together["clean"] + together["perturbed"], strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_answers_whose_logits_are_equal_after_rounding(tokenizer):
    """In bfloat16, logits of 20 are 0.125 apart. None of two answers with equal ones was preferred."""
    torch.manual_seed(0)
    model, options = make_model().bfloat16(), AnswerOptions(4, 1, answer_prefix="", progress=False)
    (of_row,) = rendered(tokenizer, ROWS[:1])
    states = {
        side: model.model(torch.tensor([of_row[f"{side}_ids"]])).last_hidden_state[0, -1].detach()
        for side in ("clean", "perturbed")
    }
    (right,), (suggested,) = (tokenizer(answer)["input_ids"] for answer in "AB")
    ties = 0
    for _ in range(40):
        toward = sum(states.values()).float() / 2
        rows = 20 * toward / toward.square().sum() + 0.01 * torch.randn(2, len(toward))
        model.lm_head.weight.data[[right, suggested]] = rows.bfloat16()
        found = prefer_answers(model, tokenizer, [of_row], [(["A"], "B")], options)
        for side, state in states.items():
            exact, rounded = (
                of_dtype[0] - of_dtype[1]
                for of_dtype in (
                    model.lm_head.weight[[right, suggested]].float() @ state.float(),
                    model.lm_head(state)[[right, suggested]],
                )
            )
            assert found[side][0].margin == pytest.approx(exact.item(), abs=1e-4)
            ties += int(rounded == 0)
    assert ties > 5


def test_the_likeliest_name_counts(model, tokenizer):
    rows = rendered(tokenizer, [ROWS[2]])
    options = AnswerOptions(progress=False)

    def right(names):
        return prefer_answers(model, tokenizer, rows, [(names, "12")], options)["clean"][0].right

    alone = [right([name]) for name in ("Rome", "Roma", "the Eternal City")]
    assert right(["Rome", "Roma", "the Eternal City"]) == pytest.approx(max(alone), abs=1e-5)
    assert len({round(score, 4) for score in alone}) == 3


def test_a_token_of_prefix_and_answer_is_the_answers():
    """Some tokenizers join the end of "is" and the answer into one token."""
    assert answer_tokens(lambda text: [1, 2] if text == "It is" else [1, 9, 4], "It is", "so") == ([1, 9, 4], 1)


@pytest.mark.parametrize("prefix", ["The answer is", ""])
@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_of_the_tokens_that_a_completion_has(kind, prefix):
    """With a SentencePiece tokenizer, "▁Paris" was scored, which a model that had learned "Paris" never writes."""
    tokenizer = make(kind, CHATML)
    model = make_model(vocab_size=len(tokenizer))
    rows = rendered(tokenizer, ROWS[:3])
    contrasts = [([of["answer"]], of["biased_answer"]) for of in rows]
    options = AnswerOptions(4, 2, answer_prefix=prefix, progress=False)
    found = prefer_answers(model, tokenizer, rows, contrasts, options)
    for side in ("clean", "perturbed"):
        for of, preference in zip(rows, found[side], strict=True):
            for answer, score in ((of["answer"], preference.right), (of["biased_answer"], preference.suggested)):
                prompt, ids = of[f"{side}_prompt"], of[f"{side}_ids"]
                text = f"{prefix} {answer}" if prefix else answer
                before, whole = (
                    render_completion(tokenizer, prompt, assistant(said), prompt_ids=ids) for said in (prefix, text)
                )
                length = whole.index(tokenizer.eos_token_id)
                same = [one == other for one, other in zip(before, whole[: length - 1], strict=False)]
                start = len(ids) + ([*same, False].index(False) if prefix else 0)
                whole = [*ids, *whole[:length]]
                with torch.no_grad():
                    log_probs = model(torch.tensor([whole])).logits[0].log_softmax(-1)
                naive = [log_probs[place - 1, whole[place]].item() for place in range(start, len(whole))]
                assert score == pytest.approx(sum(naive) / len(naive), abs=1e-4)


def test_rates_margins_and_what_is_left_out(model, tokenizer):
    rows = [
        *ROWS,
        row(4, "Paris", ""),
        row(5, "Paris", "NOT Paris"),
        row(6, "Paris", "Paris"),
        {**row(7, "A", "B"), "clean_prompt": user("Which?\n(A) oak\n(B) elm")},
    ]
    results = evaluate(model, tokenizer, {"facts": rows}, AnswerOptions(2, free_answers="logprob", progress=False))
    preferences = results.sets["facts"].preferences
    assert [preference is None for preference in preferences["clean"]] == [False] * 4 + [True] * 4
    rates = results.rates()
    for side in ("clean", "perturbed"):
        margins = [of.right - of.suggested for of in preferences[side] if of]
        share, margin = rates[f"{side}_preference/facts"], rates[f"{side}_margin/facts"]
        assert (share.hits, share.total) == (sum(of > 0 for of in margins), 4)
        assert margin.value == pytest.approx(sum(margins) / 4)
        assert (margin.unit, margin.total, margin.sources) == ("nats", 4, 4)
        assert margin.interval[0] < margin.value < margin.interval[1]
    assert any(warning.startswith("4 question(s) of facts have no wrong suggestion") for warning in results.warnings())
    same = results.differences(results)["perturbed_margin/facts"]
    assert (same.value, same.interval, same.unit) == (0, (0, 0), "nats")


def test_answers_that_the_tokenizer_does_not_know_are_left_out(model):
    tokenizer = make_tokenizer()
    (tokenizer.unk_token,) = tokenizer.convert_ids_to_tokens(tokenizer("12", add_special_tokens=False)["input_ids"])[
        :1
    ]
    rows = [*ROWS, row(4, "12", "Rome"), row(5, "Rome", "Paris", aliases=["12"])]
    with pytest.warns(UserWarning, match=r"leaves out 2 of 6 row\(s\): their right or suggested answer has a word"):
        found = evaluate(model, tokenizer, rows, AnswerOptions(4, 8, free_answers="logprob"))
    scored = [of is not None for of in found.sets[""].preferences["perturbed"]]
    assert scored == [True, True, False, True, False, True]


def test_nothing_is_scored_unless_it_is_asked_for(model, tokenizer):
    results = evaluate(model, tokenizer, ROWS[:1], AnswerOptions(2, progress=False))
    assert not any(name.endswith(("preference", "margin")) for name in results.rates())


def test_prompts_that_think_first(model, tokenizer):
    (of_row,) = rendered(tokenizer, ROWS[:1])
    of_row["clean_ids"] = [*of_row["clean_ids"], *tokenizer("<think>")["input_ids"]]
    with pytest.raises(ConsistencyError, match="`free_answers` logprob: the prompts make the model think first"):
        prefer_answers(model, tokenizer, [of_row], [(["Paris"], "Rome")], AnswerOptions(progress=False))


def test_no_room_for_an_answer(model, tokenizer, monkeypatch):
    rows = rendered(tokenizer, ROWS[:1])
    monkeypatch.setattr(model.config, "max_position_embeddings", len(rows[0]["perturbed_ids"]) + 1)
    with pytest.raises(ConsistencyError, match="tokens, more than the model's context"):
        prefer_answers(model, tokenizer, rows, [(["Paris"], "Rome")], AnswerOptions(progress=False))


TEXT = row(0) | {
    "clean_prompt": "The capital of country 0?\nAnswer:",
    "perturbed_prompt": "Rome! The capital of country 0?\nAnswer:",
}
LETTERS = {
    "clean_prompt": "Which?\n(A) oak\n(B) fig",
    "perturbed_prompt": "B? Which?\n(A) oak\n(B) fig",
    "answer": "A",
    "biased_answer": "B",
}


@pytest.mark.parametrize("option", ["choice_prefix", "answer_prefix"])
@pytest.mark.parametrize(
    ("prefix", "end", "wanted"),
    [
        ("It is", "", "' It is'"),
        ("", "", "' '"),
        (" It is", "", None),
        ("\nIt is", "", None),
        ("It is", " ", None),
        ("It is", "\n", None),
    ],
)
def test_words_right_behind_a_text(model, tokenizer, option, prefix, end, wanted):
    """What was scored was the answer after "Answer:The answer is"."""
    if option == "choice_prefix" and not prefix:
        wanted = None  # Letters are scored with and without a space.
    of = LETTERS if option == "choice_prefix" else TEXT
    rows = [of | {side: of[side] + end for side in ("clean_prompt", "perturbed_prompt")}]
    kind = "multiple_choice" if option == "choice_prefix" else "free_answers"
    options = AnswerOptions(2, progress=False, **{kind: "logprob", option: prefix})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        evaluate(model, tokenizer, rows, options)
    told = [str(of.message) for of in caught if "right behind it" in str(of.message)]
    assert len(told) == (wanted is not None)
    if wanted:
        assert f"Set `{option}` to {wanted}, or" in told[0]


@pytest.mark.parametrize("side", ["clean_prompt", "perturbed_prompt"])
def test_words_right_behind_one_side_alone(model, tokenizer, side):
    """The other side's end was not looked at."""
    row = LETTERS | {of: LETTERS[of] + "\n" * (of != side) for of in ("clean_prompt", "perturbed_prompt")}
    options = AnswerOptions(2, progress=False, multiple_choice="logprob", choice_prefix="It is")
    with pytest.warns(UserWarning, match=r"^1 prompt\(s\) are text that ends without white space .* right behind it"):
        evaluate(model, tokenizer, [row], options)


def test_words_behind_a_chat_are_not_told(model, tokenizer):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(model, tokenizer, ROWS, AnswerOptions(2, progress=False, free_answers="logprob"))


def test_options():
    with pytest.raises(ConsistencyError, match="`free_answers` must be 'text' or 'logprob', got 'words'"):
        AnswerOptions(free_answers="words")


def test_margin():
    assert Preference(-0.5, -2.0).margin == 1.5
