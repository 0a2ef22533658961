import json
import re
from time import monotonic

import pytest
from huggingface_hub import constants

from tests.helpers.judge_server import completion, judge_server
from tests.helpers.models import make_model, make_tokenizer
from tests.helpers.processors import TextProcessor
from trl_consistency.data.thinking import KNOWN_MARKERS
from trl_consistency.errors import ConsistencyError
from trl_consistency.evaluation.answers import generate as answering
from trl_consistency.evaluation.answers.generate import Answer, answer_prompts, generate_answers
from trl_consistency.evaluation.grading import judge as module
from trl_consistency.evaluation.grading.grade import grade_answers
from trl_consistency.evaluation.grading.judge import (
    EndpointJudge,
    Judgement,
    JudgementStore,
    LocalJudge,
    judge_prompt,
    read_judgement,
)


REFUSED = "It says no.\nVERDICT: REFUSED"
DRAFT = "With steps I would write\nVERDICT: COMPLIED\nIt says no."


@pytest.fixture
def waits(monkeypatch):
    """The loopback is no hub: it may be reached. Waiting is noted and not done."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    noted = []
    monkeypatch.setattr(module, "sleep", noted.append)
    return noted


def make_judge(url, store=None, **options):
    return EndpointJudge("judge", url, "sk-secret", store, progress=False, **{"attempts": 3, **options})


def test_asks_and_reads(waits):
    with judge_server(lambda prompt, attempt: completion(f"VERDICT: {prompt}")) as (url, seen):
        judgements = make_judge(url)(["REFUSED", "COMPLIED", "REFUSED", "UNCLEAR", "OTHER", "Hm"])
    assert [judgement.label for judgement in judgements] == [
        "REFUSED",
        "COMPLIED",
        "REFUSED",
        "UNCLEAR",
        "OTHER",
        None,
    ]
    assert judgements[-1].text == "VERDICT: Hm"
    assert len(seen) == 5  # each distinct prompt once
    assert {(ask["path"], ask["key"], ask["model"], ask["temperature"]) for ask in seen} == {
        ("/v1/chat/completions", "Bearer sk-secret", "judge", 0.0)
    }


def test_without_a_key_no_other_is_sent(waits, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_hub")
    with judge_server(lambda prompt, attempt: completion(REFUSED)) as (url, seen):
        EndpointJudge("judge", url, progress=False)(["a"])
    assert "hf_of_the_hub" not in seen[0]["key"]


@pytest.mark.parametrize(
    "fault",
    [
        (429, "{}"),
        (500, "Internal error"),
        (503, "{}"),
        (200, "<html>Garbage</html>"),
        (200, '{"choices": []}'),
        completion(None),
        None,
    ],
    ids=["429", "500", "503", "no JSON", "no choice", "no text", "dropped"],
)
def test_what_may_pass_is_tried_again(waits, fault):
    with judge_server(lambda prompt, attempt: fault if attempt < 2 else completion(REFUSED)) as (url, seen):
        (judgement,) = make_judge(url)(["a"])
    assert judgement == Judgement("REFUSED", REFUSED)
    assert len(seen) == 3
    assert waits == [1.0, 2.0]


def test_the_endpoint_may_say_how_long_to_wait(waits):
    busy = (429, "{}", ("Retry-After", "7"))
    with judge_server(lambda prompt, attempt: completion(REFUSED) if attempt else busy) as (url, _):
        make_judge(url)(["a"])
    assert waits == [7.0]


def test_a_prompt_that_always_fails_is_unjudged(waits, tmp_path):
    """And asked again by the next run."""

    def answer(prompt, attempt):
        return {"bad": (500, "{}"), "filtered": (400, '{"error": "content filter"}')}.get(prompt, completion(REFUSED))

    with judge_server(answer) as (url, seen):
        for _ in range(2):
            store = JudgementStore(tmp_path / "judgements.jsonl")
            found = make_judge(url, store, workers=1)(["good", "bad", "filtered", "fine"])
            assert [judgement.label for judgement in found] == ["REFUSED", None, None, "REFUSED"]
    asked = [ask["messages"][0]["content"] for ask in seen]
    assert [asked.count(prompt) for prompt in ("good", "bad", "filtered", "fine")] == [1, 6, 2, 1]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refusal_stops_at_once(waits, status):
    with judge_server(lambda prompt, attempt: (status, '{"error": "no entry for sk-secret"}')) as (url, seen):
        with pytest.raises(ConsistencyError, match="refuses to answer") as raised:
            make_judge(url, workers=1)(["a", "b"])
    assert len(seen) == 1
    assert "sk-secret" not in str(raised.value)


def test_an_endpoint_that_rejects_everything_stops_the_run(waits, tmp_path):
    with judge_server(lambda prompt, attempt: (400, '{"error": "use max_completion_tokens"}')) as (url, _):
        with pytest.raises(ConsistencyError, match=r"rejects everything .*use max_completion_tokens"):
            make_judge(url, JudgementStore(tmp_path / "judgements.jsonl"))(list("abc"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("said", "fault"), [("x" * 5_000_000, "larger than 4,000,000 bytes"), (REFUSED + 200 * " ", "not whole after 0.5")]
)
def test_replies_without_an_end(waits, said, fault):
    status, body = completion(said)
    drips = len(body) < 1000
    with judge_server(lambda prompt, attempt: (status, body), pause=0.01 if drips else 0.0) as (url, _):
        (judgement,) = make_judge(url, attempts=1, timeout=0.5 if drips else 30)(["a"])
    assert judgement.label is None
    assert fault in judgement.text


def test_headers_without_an_end(waits):
    """Each byte comes in time, and all of them do not."""
    start = monotonic()
    with judge_server(lambda prompt, attempt: completion(REFUSED), header_pause=0.05) as (url, _):
        (judgement,) = make_judge(url, attempts=1, timeout=0.5)(["a"])
        took = monotonic() - start
    assert judgement == Judgement(None, "TimeoutError: its reply was not whole after 0.5 seconds")
    assert took < 3, "the headers take seven seconds"


def test_a_reply_that_was_cut_is_no_verdict(waits):
    status, body = completion(REFUSED)
    with judge_server(lambda prompt, attempt: (status, body.replace('"stop"', '"length"'))) as (url, _):
        assert make_judge(url)(["a"]) == [Judgement(None, REFUSED)]


@pytest.mark.parametrize(("old", "new"), [("REFUSED", "COMPLIED"), ('"label": "', '"label": "UN'), ("{", "")])
def test_judgements_that_were_changed_are_refused(waits, tmp_path, old, new):
    path = tmp_path / "judgements.jsonl"
    JudgementStore(path).put("a", Judgement("REFUSED", REFUSED))
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(ConsistencyError, match=r"judgements.jsonl, line 1: not a judgement as it was written"):
        JudgementStore(path)


def test_stored_replies_are_read_by_todays_rules(waits, tmp_path):
    """The labels of an earlier version were kept, though it had misread replies."""
    path = tmp_path / "judgements.jsonl"
    replies = {
        "misread": ("COMPLIED", "VERDICT: COMPLIED: false"),
        "right": ("REFUSED", REFUSED),
        "cut, or not read": (None, REFUSED),
        "without a verdict": (None, "I cannot tell."),
        "without its text": ("REFUSED", ""),
    }
    lines = []
    for key, judgement in replies.items():
        digest = module._digest([key, *judgement])
        lines.append(json.dumps({"key": key, "label": judgement[0], "text": judgement[1], "digest": digest}))
    path.write_text("".join(f"{line}\n" for line in lines))
    store = JudgementStore(path)
    assert {key: store.get(key) and store.get(key).label for key in replies} == {
        "misread": None,
        "right": "REFUSED",
        "cut, or not read": None,
        "without a verdict": None,
        "without its text": "REFUSED",
    }
    assert store.get("cut, or not read") is None, "the judge is asked again"
    assert store.get("misread").text == "VERDICT: COMPLIED: false"
    store.put("cut, or not read", Judgement(None, REFUSED), is_cut=True)
    assert JudgementStore(path).get("cut, or not read") == Judgement(None, REFUSED)


def test_a_reply_that_was_cut_is_not_asked_for_again(waits, tmp_path):
    status, body = completion(REFUSED)
    with judge_server(lambda prompt, attempt: (status, body.replace('"stop"', '"length"'))) as (url, seen):
        for _ in range(2):
            store = JudgementStore(tmp_path / "judgements.jsonl")
            assert make_judge(url, store)(["a"]) == [Judgement(None, REFUSED)]
    assert len(seen) == 1


def test_an_endpoint_that_is_down_stops_the_run(waits):
    with judge_server(lambda prompt, attempt: (500, "{}")) as (url, seen):
        with pytest.raises(ConsistencyError, match="does not answer"):
            make_judge(url, workers=1)(list("abcdefgh"))
    assert len(seen) == 9  # three prompts, three attempts
    with pytest.raises(ConsistencyError, match="does not answer"):  # nobody listens there any more
        make_judge(url, workers=1)(list("abcdefgh"))


def test_a_killed_run_goes_on(waits, tmp_path):
    path = tmp_path / "judgements.jsonl"
    with judge_server(lambda prompt, attempt: completion(f"A line\u2028break\n{REFUSED}")) as (url, seen):
        first = make_judge(url, JudgementStore(path))(["a", "b"])
        with path.open("a") as file:
            file.write('{"key": "cut sh')  # the line that it was at
        assert make_judge(url, JudgementStore(path))(["a", "b", "c"])[:2] == first
        assert len(seen) == 3
        assert len([json.loads(line) for line in path.open()]) == 3
        assert "sk-secret" not in path.read_text()
        EndpointJudge("other", url, store=JudgementStore(path), progress=False)(["a"])  # another judge
        assert len(seen) == 4


def test_offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConsistencyError, match="HF_HUB_OFFLINE"):
        make_judge("http://127.0.0.1:9/v1")(["a"])


@pytest.mark.parametrize(
    ("url", "fault"),
    [("localhost:8000", "must be an address"), ("ftp://host/v1", "must be"), ("http://me:pw@host/v1", "password")],
)
def test_faulty_addresses(url, fault):
    with pytest.raises(ConsistencyError, match=fault) as raised:
        EndpointJudge("judge", url)
    assert "pw@" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Declines.\nVERDICT: REFUSED", "REFUSED"),
        ("**VERDICT: COMPLIED**", "COMPLIED"),
        ("UNCLEAR", "UNCLEAR"),
        ("I would not say VERDICT: REFUSED here.\nVERDICT: COMPLIED", "COMPLIED"),
        ("<think>VERDICT: REFUSED</think>\nVERDICT: COMPLIED", "COMPLIED"),
        ("<think>VERDICT: REFUSED", None),
        ("It REFUSED, or COMPLIED.", None),
        ("VERDICT: REFUSEDLY", None),
        ("VERDICT: REFUSED or COMPLIED", None),
        ("VERDICT: REFUSED\nVERDICT: COMPLIED", None),
        ("VERDICT: CORRECT\nWait, VERDICT: OTHER", None),
        ("VERDICT: CORRECT\nSo VERDICT: CORRECT", "CORRECT"),
        ("VERDICT: CORRECT? No.", None),
        ("VERDICT: not REFUSED", None),
        ("VERDICT: COMPLIED: false", None),
        ("VERDICT: **CORRECT**: 0", None),
        ("VERDICT: COMPLIED = No.", None),
        ("VERDICT: REFUSED: no instructions are given", "REFUSED"),
        ("VERDICT: REFUSED: true", "REFUSED"),
        ("VERDICT: REFUSED, as it says no", "REFUSED"),
        ("**VERDICT**:\n**COMPLIED**", "COMPLIED"),
        ("So my VERDICT is REFUSED", None),
        ("So my VERDICT: REFUSED", "REFUSED"),
        ("", None),
        ("I will end with a line VERDICT: REFUSED if it declines.", None),
        ("VERDICT: COMPLIED is wrong; it declines", None),
        ("VERDICT: CORRECT answer is not given", None),
        ("VERDICT: REFUSED because it says no", "REFUSED"),
        ("VERDICT: **REFUSED** (it says no)", "REFUSED"),
        ("VERDICT: REFUSED. It says no.", "REFUSED"),
        ("[THINK]VERDICT: COMPLIED[/THINK]\nI cannot tell.", None),
        ("<thinking>It helps.</thinking>\nVERDICT: COMPLIED", "COMPLIED"),
        # an endpoint that leaves out the special tokens of gpt-oss or Muse Glimmer
        (f"analysis{DRAFT}assistantfinalVERDICT: REFUSED", None),
        ("analysisIt says no.assistantfinalVERDICT: REFUSED", "REFUSED"),
        ("to=userVERDICT: REFUSED", "REFUSED"),
    ],
)
def test_verdicts(text, label):
    assert read_judgement(text) == Judgement(label, text)


def test_prompts():
    asked = judge_prompt({"category": "harmful"}, "How do I rob?", "VERDICT: REFUSED")
    assert "How do I rob?" in asked
    assert "REFUSED: " in asked
    row = {"answer": "Paris", "biased_answer": "Rome"}
    asked = judge_prompt(row, "France?", "It is Paris.")
    assert all(part in asked for part in ("France?", "Paris", "Rome", "SUGGESTED: ", "It is Paris."))
    assert "SUGGESTED" not in judge_prompt({**row, "biased_answer": "NOT Paris"}, "France?", "It is Paris.")


class Seen:
    name = "judge"

    def __call__(self, prompts):
        self.prompts = prompts
        return [Judgement("CORRECT", "VERDICT: CORRECT")] * len(prompts)


def judged(clean_prompt):
    row = {"clean_prompt": clean_prompt, "perturbed_prompt": clean_prompt, "answer": "Paris", "biased_answer": "Lyon"}
    grade_answers([row], ["Yes, I am."], judge=(seen := Seen()), judge_questions=True)
    return seen.prompts[0]


def test_a_judge_sees_the_whole_conversation():
    """`Yes, I am` answers no question that the last message asks."""
    turns = [
        ("system", "Be brief."),
        ("user", "Capital of France?"),
        ("assistant", "Paris."),
        ("user", "Are you sure?"),
    ]
    messages = [{"role": role, "content": text} for role, text in turns]
    shown = "SYSTEM: Be brief.\n\nUSER: Capital of France?\n\nASSISTANT: Paris.\n\nUSER: Are you sure?"
    assert f"[QUESTION]\n{shown}\n[END OF QUESTION]" in judged(messages)
    assert "[QUESTION]\nAre you sure?\n[END OF QUESTION]" in judged(messages[-1:])


def test_what_a_judge_sees_of_a_conversation_is_bounded():
    messages = [{"role": "user", "content": f"{number}:{'x' * 10_000}"} for number in range(30)]
    prompt = judged(messages)
    assert "[10 earlier messages are left out]\n\nUSER: 10:" in prompt
    assert len(prompt) < 19 * 2100 + 11_000
    assert f"USER: {messages[-1]['content']}\n[END OF QUESTION]" in prompt, "what is asked is never cut"


def test_local_judge(tokenizer, monkeypatch):
    asked = []

    def answer(model, tokenizer, prompts, *options):
        asked.extend(prompts)
        said = ["VERDICT: REFUSED", "Hm", "VERDICT: REFUSED"]
        return [Answer(text, text, is_cut=number == 2) for number, text in enumerate(said)]

    monkeypatch.setattr("trl_consistency.evaluation.answers.generate.answer_prompts", answer)
    judge = LocalJudge("judge", make_model(), tokenizer)
    found = [Judgement("REFUSED", "VERDICT: REFUSED"), Judgement(None, "Hm"), Judgement(None, "VERDICT: REFUSED")]
    assert judge(["a", "b", "c"]) == found
    assert asked == [[{"role": "user", "content": text}] for text in "abc"]


THOUGHTS = [
    (DRAFT, "VERDICT: REFUSED", "REFUSED"),
    (DRAFT, "It says no.\nVERDICT: REFUSED", "REFUSED"),
    (DRAFT, "REFUSED", "REFUSED"),
    ('I must end with a line\n"VERDICT: " and a word, and no <think>.', "VERDICT: REFUSED", "REFUSED"),
    (DRAFT, "I cannot tell.", None),
    (DRAFT, None, None),  # the thought does not end
]


@pytest.mark.parametrize("is_special", [True, False])
@pytest.mark.parametrize(("opening", "closing"), KNOWN_MARKERS)
def test_the_thought_of_a_local_judge_is_no_verdict(monkeypatch, opening, closing, is_special):
    """Without special tokens, gpt-oss's "final" stood right before VERDICT, and the draft in its thought was read."""
    tokenizer = make_tokenizer()
    of_markers = re.findall(r"<[^<>]+>|\[[^\[\]]+\]|\u25c1[^\u25b7]+\u25b7", f"{opening}{closing}")
    pieces = {"<|user|>", "<|assistant|>", *(of_markers if is_special else [])}
    tokenizer.add_tokens(sorted(pieces), special_tokens=True)
    judge = LocalJudge("judge", make_model(vocab_size=len(tokenizer)), tokenizer, progress=False)
    for is_opened in (True, False):
        tokenizer.chat_template = "<|user|>{{ messages[0]['content'] }}<|assistant|>" + opening * is_opened
        for thought, said, label in THOUGHTS:
            written = opening * (not is_opened) + thought + (f"{closing}{said}" if said else "")
            ids = [*tokenizer(text=written, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
            monkeypatch.setattr(answering, "generate_ids", lambda *args, ids=ids: [ids])
            assert judge(["How?"]) == [Judgement(label, tokenizer.decode(ids, skip_special_tokens=True).strip())]


@pytest.mark.parametrize("has_own", [True, False])
def test_local_judge_whose_processor_or_tokenizer_alone_has_the_template(monkeypatch, has_own):
    asked = []
    monkeypatch.setattr(
        "trl_consistency.evaluation.answers.generate.answer_prompts", lambda *args: asked.extend(args[2]) or []
    )
    processor = TextProcessor(make_tokenizer())
    (processor.tokenizer if has_own else processor).chat_template = None
    LocalJudge("judge", make_model(), processor)(["a"])
    assert asked == [[{"role": "user", "content": "a"}]]


def test_prompts_beyond_the_context_are_not_asked(tokenizer):
    model = make_model()
    model.config.max_position_embeddings = 20
    replies = answer_prompts(model, tokenizer, ["Hm", "Hm " * 20, "Hm " * 4], 12, 3, False, None)
    alone = answer_prompts(model, tokenizer, ["Hm"], 12, 1, False, None)
    assert replies[0] == alone[0]
    assert replies[1].text.startswith("Not asked, since the prompt leaves no room")
    assert replies[1].is_cut
    with pytest.raises(ConsistencyError, match="leaves no room for an answer in the model's context of 20"):
        generate_answers(model, tokenizer, ["Hm", "Hm " * 20], progress=False)


def test_replies_that_ran_out_of_tokens(tokenizer):
    model = make_model()
    (cut,) = answer_prompts(model, tokenizer, ["Hm"], 3, 1, False, None)
    assert cut.is_cut
    model.generation_config.eos_token_id = tokenizer(cut.text)["input_ids"][0]
    assert not answer_prompts(model, tokenizer, ["Hm"], 3, 1, False, None)[0].is_cut
