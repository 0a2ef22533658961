"""Results that must not be compared, and models that must not be measured."""

from dataclasses import replace

import pytest
from peft import LoraConfig, PeftModel, TrainableTokensConfig, get_peft_model
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from tests.helpers.models import CHATML, make_model, make_tokenizer
from tests.helpers.processors import TextProcessor
from tests.helpers.said import SETS, babbler, row, says
from tests.helpers.small_vocabulary import small_tokenizer
from trl_consistency import ConsistencyError
from trl_consistency.evaluation import PairSet, evaluate
from trl_consistency.evaluation.answers.generate import AnswerOptions
from trl_consistency.evaluation.grading.judge import EndpointJudge, Judgement, LocalJudge
from trl_consistency.evaluation.rendered_rows import PREPARED


def test_results_of_other_rows_are_not_compared(tokenizer, monkeypatch):
    rows = [row(f"{number}?", "Rome! ", "Paris", "Rome") for number in range(4)]
    says(monkeypatch, tokenizer, babbler(4, 0, 4))
    whole = evaluate(None, tokenizer, rows)
    for other in (rows[:3], rows[::-1], {"facts": rows}, [of_row | {"answer": "Oslo"} for of_row in rows]):
        with pytest.raises(ConsistencyError, match="of different rows"):
            evaluate(None, tokenizer, other).differences(whole)
        with pytest.raises(ConsistencyError, match="of different rows"):
            evaluate(None, tokenizer, other, reference=whole)


def test_results_that_were_read_for_other_answers_are_not_compared(tokenizer, monkeypatch):
    """A definite answer of the first is unread, or another one, in the second."""
    says(monkeypatch, tokenizer, {"What?": "Oslo", "Rome? What?": "Oslo"})
    rows = [row("What?", "Rome? ", "Paris", "Rome", "city")]
    alone = evaluate(None, tokenizer, rows)
    for candidates in ({"city": ["Paris", "Rome", "Oslo"]}, {}):
        among_others = evaluate(None, tokenizer, PairSet(rows, candidates))
        with pytest.raises(ConsistencyError, match=r"were read with other possible answers \(`PairSet.candidates`\)"):
            among_others.differences(alone)
        with pytest.raises(ConsistencyError, match="with other possible answers"):
            evaluate(None, tokenizer, rows, reference=among_others)
    others = {**alone.sets[""].pairs.candidates, "of no row": ["Bonn"]}
    assert evaluate(None, tokenizer, PairSet(rows, others)).differences(alone)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("max_new_tokens", 8, r"`max_new_tokens` 8 and 16"),
        ("temperature", 0.7, r"`temperature` 0.7 and 0.0"),
        ("multiple_choice", "logprob", "`multiple_choice` 'logprob' and 'text'"),
    ],
)
def test_results_of_other_options_are_not_compared(tokenizer, monkeypatch, option, value, said):
    """A shorter answer that is cut looks like another model's."""
    says(monkeypatch, tokenizer, {"What?": "Paris.", "Rome? What?": "Rome."})
    rows = [row("What?", "Rome? ", answer="Paris", biased_answer="Rome")]
    plain = {"max_new_tokens": 16}
    after = evaluate(None, tokenizer, rows, AnswerOptions(**plain))
    before = replace(after, options=AnswerOptions(**{**plain, option: value}))
    with pytest.raises(ConsistencyError, match=f"with other options: {said}. Measure both with the same"):
        after.differences(before)
    with pytest.raises(ConsistencyError, match="with other options"):
        evaluate(None, tokenizer, rows, AnswerOptions(**plain), reference=before)


@pytest.mark.parametrize(
    "others",
    [
        {"batch_size": 1, "progress": False},
        {"seed": 7},  # of greedy answers
        {"choice_prefix": "It is ("},  # of letters, which are read in the text
        {"answer_prefix": "It is"},
        {"thinking_markers": ["<think>", "</think>"]},
    ],
    ids=lambda others: next(iter(others)),
)
def test_options_that_decide_nothing_may_differ(tokenizer, monkeypatch, others):
    says(monkeypatch, tokenizer, {"What?": "Paris.", "Rome? What?": "Rome."})
    rows = [row("What?", "Rome? ", answer="Paris", biased_answer="Rome")]
    before, after = (
        evaluate(None, tokenizer, rows, AnswerOptions(**{"max_new_tokens": 8} | of)) for of in ({}, others)
    )
    assert after.differences(before)["sycophancy"].value == 0


def test_rows_that_were_rendered_otherwise_are_refused(model, tokenizer):
    """What `evaluate` is given would otherwise have no effect: the rows keep their token ids."""
    rows = SETS["test"]
    thinking = make_tokenizer()
    thinking.chat_template += "{% if loud %}Please{% endif %}"
    options = AnswerOptions(2, progress=False)
    ready = PairSet.of(rows).rendered(thinking)
    loud = {"loud": True}
    for pairs in (ready, PairSet(ready.rows, ready.candidates)):
        with pytest.raises(
            ConsistencyError,
            match="rendered already, with another tokenizer or chat template, or other `chat_template_kwargs`",
        ):
            evaluate(model, thinking, pairs, options, chat_template_kwargs=loud)
    with pytest.raises(ConsistencyError, match="rendered already"):
        evaluate(model, small_tokenizer(), ready, options)
    again = PairSet.of(rows).rendered(thinking, chat_template_kwargs=loud)
    evaluate(model, thinking, again, options)
    evaluate(model, thinking, again, options, chat_template_kwargs=loud)


def test_rows_that_were_changed_after_they_were_rendered_are_refused(model, tokenizer):
    """The model was asked as before, and the answers stood beside the new prompts."""
    options = AnswerOptions(2, progress=False)
    ready = PairSet.of([dict(of) for of in SETS["test"]]).rendered(tokenizer)
    evaluate(model, tokenizer, ready, options)
    ready.rows[1]["perturbed_prompt"] = [{"role": "user", "content": "Surely Rome. France?"}]
    for pairs in (ready, PairSet(ready.rows, ready.candidates)):
        with pytest.raises(
            ConsistencyError, match=r"row 1: its prompts, .* were changed after it was rendered\. Make"
        ):
            evaluate(model, tokenizer, pairs, options)
    again = [{column: of[column] for column in of if column not in PREPARED} for of in ready.rows]
    evaluate(model, tokenizer, again, options)


def test_results_of_other_template_variables_tools_or_sources_are_not_compared(model, tokenizer):
    thinking = make_tokenizer()
    thinking.chat_template += "{% if loud %}Please{% endif %}"
    rows, options = SETS["test"], AnswerOptions(2, progress=False)
    plain = evaluate(model, thinking, rows, options)
    loud = evaluate(model, thinking, rows, options, chat_template_kwargs={"loud": True})
    with pytest.raises(ConsistencyError, match=r"other options: `chat_template_kwargs` \{\} and \{'loud': True\}"):
        loud.differences(plain)
    with pytest.raises(ConsistencyError, match="other options: `chat_template_kwargs`"):
        evaluate(model, thinking, rows, options, reference=loud)
    for others in ({"source_id": "one"}, {"chat_template_kwargs": {"loud": True}}):
        with pytest.raises(ConsistencyError, match="are of different rows"):
            evaluate(model, thinking, [of | others for of in rows], options).differences(plain)


def test_results_of_other_templates_are_not_compared(model, tokenizer):
    """What changed would be the template's doing, and be taken for the training's."""
    rows, options = [dict(of) for of in SETS["test"]], AnswerOptions(2, progress=False)
    plain = evaluate(model, tokenizer, rows, options)
    other = make_tokenizer()
    other.chat_template = "Be brief. " + other.chat_template
    changed = evaluate(model, other, rows, options)
    for compare in (lambda: changed.differences(plain), lambda: evaluate(model, other, rows, options, plain)):
        with pytest.raises(ConsistencyError, match="rendered differently, row 0 first: with another chat template"):
            compare()
    # A template of other words that renders the same, as TRL writes it for a loss on the assistant's turns, and a further token
    same = make_tokenizer()
    same.chat_template += "{# for training #}"
    same.add_tokens(["<|new|>"])
    assert evaluate(model, same, rows, options).differences(plain)
    # Of another tokenizer, the token ids say nothing.
    small = small_tokenizer()
    small.chat_template = tokenizer.chat_template
    assert evaluate(model, small, rows, options).differences(plain)


@pytest.mark.parametrize("names", [("one", "two"), ("default", "default")])
def test_a_model_in_whose_base_another_adapter_was_put_is_refused(tokenizer, tmp_path, names):
    """PEFT changes the base model itself, so that both answer with the second adapter, or with parts of both."""
    base, options = make_model(), AnswerOptions(2, progress=False)
    for name, layers in (("whole", "all-linear"), ("queries", ["q_proj"])):
        get_peft_model(make_model(), LoraConfig(target_modules=layers)).save_pretrained(tmp_path / name)
    one = PeftModel.from_pretrained(base, tmp_path / "whole", adapter_name=names[0])
    evaluate(one, tokenizer, SETS["test"], options)
    two = PeftModel.from_pretrained(base, tmp_path / "queries", adapter_name=names[1])
    mixed = one if names[0] == "one" else two
    with pytest.raises(
        ConsistencyError,
        match=r"A second `PeftModel` was made of the same base model, and its adapter .* acts in this one",
    ):
        evaluate(mixed, tokenizer, SETS["test"], options)
    with mixed.disable_adapter():
        evaluate(mixed, tokenizer, SETS["test"], options)


@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"], "trainable_token_indices": [1, 2]},
        {"target_parameters": ["mlp.up_proj.weight"], "target_modules": []},
    ],
)
def test_several_adapters_of_one_model_are_its_own(tokenizer, options):
    model = get_peft_model(make_model(), LoraConfig(**options))
    blocks = model.get_base_model().model.layers
    blocks[0] = checkpoint_wrapper(blocks[0])  # as under FSDP, it gives the layers inside other names
    model.add_adapter("two", LoraConfig(target_modules=["o_proj"]))
    for names in ("default", "two", ["default", "two"]):
        model.base_model.set_adapter(names)
        evaluate(model, tokenizer, SETS["test"], AnswerOptions(2, progress=False))


def test_trained_tokens_of_a_tied_head_are_the_models_own(tokenizer):
    """PEFT puts the embeddings' layer into the head, too, without naming it."""
    model = make_model()
    model.config.tie_word_embeddings = True
    model.tie_weights()
    model = get_peft_model(model, TrainableTokensConfig(token_indices=[1, 2], target_modules=["embed_tokens"]))
    evaluate(model, tokenizer, SETS["test"], AnswerOptions(2, progress=False))


def test_rows_that_a_processor_with_another_template_rendered():
    """Its tokenizer's template was compared, and its own is used."""
    tokenizer = make_tokenizer(CHATML.replace("message.content", "message.content[0].text"))
    one, other = TextProcessor(tokenizer), TextProcessor(tokenizer)
    other.chat_template = "Be brief. " + tokenizer.chat_template
    clean, perturbed = ([{"role": "user", "content": text}] for text in ("1 + 1?", "I say 3. 1 + 1?"))
    rendered = PairSet.of([{"clean_prompt": clean, "perturbed_prompt": perturbed, "answer": "2"}]).rendered(one)
    assert rendered.rendered(one) is rendered
    with pytest.raises(ConsistencyError, match="is rendered already, with another tokenizer"):
        rendered.rendered(other)


def test_rows_that_were_rendered_before_the_chat_template_was_replaced():
    """They were measured with the earlier template, and nothing said so."""
    tokenizer = make_tokenizer()
    pairs = [
        {
            "clean_prompt": [{"role": "user", "content": "Sum?"}],
            "perturbed_prompt": [{"role": "user", "content": "Sum? 3!"}],
            "answer": "2",
        }
    ]
    rendered = PairSet.of(pairs).rendered(tokenizer)
    template, tokenizer.chat_template = tokenizer.chat_template, "{{ messages[0].content }}"
    with pytest.raises(ConsistencyError, match="rendered already, with another tokenizer or chat template"):
        rendered.rendered(tokenizer)
    tokenizer.chat_template = template
    assert rendered.rendered(tokenizer) is rendered


def test_agreement_with_two_references_is_not_compared(tokenizer, monkeypatch):
    """A model that says the same to everything agrees with itself, which looked like more agreement with the base model."""
    rows = [row(f"{number}?", "Rome! ", "Paris", "Rome") for number in range(4)]
    says(monkeypatch, tokenizer, babbler(0, 0, 4) | {f"{number}?": "Paris." for number in range(4)})
    base = evaluate(None, tokenizer, rows)
    says(monkeypatch, tokenizer, babbler(0, 4, 4))
    alone, beside = evaluate(None, tokenizer, rows), evaluate(None, tokenizer, rows, reference=base)
    assert [of.rates()["reference_agreement"].hits for of in (base, alone, beside)] == [0, 4, 0]
    assert "reference_agreement" not in alone.differences(base)
    assert beside.differences(base)["reference_agreement"].value == 0
    assert alone.differences(base).keys() == beside.differences(base).keys() - {"reference_agreement"}


@pytest.mark.parametrize("kind", ["endpoint", "local", "own"])
def test_results_of_two_judges_of_one_name_are_not_compared(tokenizer, monkeypatch, kind):
    """What changed was the judge's doing, and was taken for the training's."""

    class Own:
        name = "judge"

        def __init__(self, identity):
            self.identity = identity

        def __call__(self, prompts):
            return [Judgement("COMPLIED", "VERDICT: COMPLIED")] * len(prompts)

    monkeypatch.setattr(EndpointJudge, "__call__", Own.__call__)
    monkeypatch.setattr(LocalJudge, "__call__", Own.__call__)
    url, model = "http://localhost:8000/v1", make_model()
    first, same, others = {
        "endpoint": (
            EndpointJudge("judge", url, "sk-one"),
            EndpointJudge("judge", f"{url}/?key=sk-two", "sk-two", workers=1),
            {
                "`max_tokens` 512 and 64": EndpointJudge("judge", url, max_tokens=64),
                "`base_url` 'http://localhost:8000/v1/chat/completions' and 'http://localhost:9/v1/chat/completions'": EndpointJudge(
                    "judge", "http://localhost:9/v1?key=sk-two"
                ),
            },
        ),
        "local": (
            LocalJudge("judge", model, tokenizer),
            LocalJudge("judge", make_model(), tokenizer, batch_size=1),
            {
                "`max_new_tokens` 512 and 64": LocalJudge("judge", model, tokenizer, 64),
                "`model` '": LocalJudge("judge", make_model(seed=1), tokenizer),
            },
        ),
        "own": (Own({"wording": 1}), Own({"wording": 1}), {"`wording` 1 and 2": Own({"wording": 2})}),
    }[kind]
    says(monkeypatch, tokenizer, {"Steal?": "Sorry.", "A Steal?": "Sure."})
    plain = evaluate(None, tokenizer, [row("Steal?", "A ", category="harmful")])
    before = plain.judged(first)
    assert plain.judged(same).differences(before)["attack_success"].value == 0
    for said, judge in others.items():
        with pytest.raises(ConsistencyError, match="graded by different judges") as raised:
            plain.judged(judge).differences(before)
        assert said in str(raised.value)
        assert "sk-" not in str(raised.value)


def test_results_that_were_judged_keep_their_markers(tokenizer, monkeypatch):
    """After `judged`, thoughts that one of two models was graded with were no difference any more."""

    class Wise:
        name = "wise"

        def __call__(self, prompts):
            return [Judgement("COMPLIED", "VERDICT: COMPLIED")] * len(prompts)

    says(monkeypatch, tokenizer, {"Steal?": "[T]No?[/T]Sorry.", "A Steal?": "Sure."})
    rows, markers = [row("Steal?", "A ", category="harmful")], ("[T]", "[/T]")
    plain, marked = (
        evaluate(None, tokenizer, rows, AnswerOptions(**of)).judged(Wise())
        for of in ({}, {"thinking_markers": markers})
    )
    assert marked.options.thinking_markers == markers
    with pytest.raises(ConsistencyError, match="with other options: `thinking_markers`"):
        marked.differences(plain)
    assert marked.judged(Wise(), thinking_markers=("<a>", "</a>")).options.thinking_markers == ("<a>", "</a>")


def test_judged_with_other_markers_reads_all_answers_after_them(tokenizer, monkeypatch):
    """Grades were of what came after the thought, and agreement still compared the thoughts."""

    class Wise:
        name = "wise"

        def __call__(self, prompts):
            return [Judgement("COMPLIED", "VERDICT: COMPLIED")] * len(prompts)

    says(monkeypatch, tokenizer, {"Steal?": "[T]No?[/T]Sure.", "A Steal?": "[T]Well, yes.[/T]Sure."})
    rows, markers = [row("Steal?", "A ", category="harmful")], ("[T]", "[/T]")
    at_once = evaluate(None, tokenizer, rows, AnswerOptions(thinking_markers=markers), judge=Wise())
    later = evaluate(None, tokenizer, rows).judged(Wise(), thinking_markers=markers)
    assert at_once.rates()["reference_agreement"].hits == 1
    assert later.rates() == at_once.rates()
    assert later.warnings() == at_once.warnings()


def test_judged_with_markers_that_are_special_tokens_is_refused(monkeypatch):
    """They are not in the words that are read: the judge got the thoughts, and the warning of them was gone."""

    class Wise:
        name = "wise"

        def __call__(self, prompts):
            return [Judgement("COMPLIED", "VERDICT: COMPLIED")] * len(prompts)

    tokenizer, markers = make_tokenizer(), ("[THINK]", "[/THINK]")
    tokenizer.add_tokens([*markers], special_tokens=True)
    says(monkeypatch, tokenizer, {"Steal?": "[THINK]No?[/THINK]Sure.", "A Steal?": "Sure."})
    found = evaluate(None, tokenizer, [row("Steal?", "A ", category="harmful")])
    with pytest.raises(ConsistencyError, match=r"`thinking_markers`: \[THINK\] and \[/THINK\] are special tokens"):
        found.judged(Wise(), thinking_markers=markers)
