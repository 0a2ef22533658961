from datetime import datetime, timedelta

import pytest
from datasets import Dataset, IterableDataset, load_dataset
from transformers.utils import chat_template_utils

from tests.helpers.models import CHATML, make_pairs, make_tokenizer
from tests.helpers.prompts import CHAT_TEMPLATES
from tests.helpers.small_vocabulary import small_tokenizer
from trl_consistency import InvalidPairsError
from trl_consistency.data import prepare, template_check
from trl_consistency.data.lint import lint_pairs
from trl_consistency.data.prepare import align_pairs, align_row, prepare_pairs, row_numbers, with_own_columns
from trl_consistency.data.rendering import render_completion, render_prompt


def test_both_sides_and_the_completion(tokenizer):
    pairs = make_pairs(5)
    prepared = prepare_pairs(pairs, tokenizer, "train")
    for row, ids in zip(pairs, prepared, strict=True):
        assert ids["clean_ids"] == render_prompt(tokenizer, row["clean_prompt"])
        assert ids["perturbed_ids"] == render_prompt(tokenizer, row["perturbed_prompt"])
        assert ids["completion_ids"] == render_completion(tokenizer, row["clean_prompt"], row["completion"])
        assert ids["length"] == len(ids["perturbed_ids"]) + len(ids["completion_ids"])
    assert prepared["clean_prompt"][:] == pairs["clean_prompt"][:], "other columns ride along"


def test_both_sides_go_through_the_template_with_the_same_arguments():
    """Mistake 6: per-row tools and template variables reach both sides, on top of the options' own."""
    template = "{{ tools[0].name }}{{ a }}{{ b }}{% for m in messages %}{{ m.content }}{% endfor %}"
    tokenizer = make_tokenizer(template)
    user = [{"role": "user", "content": "?"}]
    rows = [
        {
            "clean_prompt": user,
            "perturbed_prompt": user,
            "tools": '[{"name": "f"}]',
            "chat_template_kwargs": '{"a": "x"}',
        },
        {"clean_prompt": user, "perturbed_prompt": user, "tools": '[{"name": "f"}]', "chat_template_kwargs": None},
    ]
    prepared = prepare_pairs(Dataset.from_list(rows), tokenizer, "train", chat_template_kwargs={"a": "y", "b": "z"})
    for side in ("clean_ids", "perturbed_ids"):
        assert tokenizer.batch_decode(prepared[side][:]) == ["fxz?", "fyz?"]


def test_rows_that_an_earlier_version_rendered_are_rendered_anew(tokenizer, tmp_path, monkeypatch):
    """`datasets` keeps what a function has made under the name of the function, whatever that does by now."""
    make_pairs(5).to_parquet(tmp_path / "pairs.parquet")
    pairs = load_dataset("parquet", data_files=str(tmp_path / "pairs.parquet"), split="train", cache_dir=tmp_path)

    def render():
        prepared = prepare_pairs(pairs, tokenizer, "train")
        return align_pairs(prepared, tokenizer, "train", kinds=("suffix", "content_span"))[0][0]

    now = render()
    monkeypatch.setattr(prepare, "render_prompt", lambda *args: [7, *render_prompt(*args)])
    monkeypatch.setattr(prepare, "shared_content_span", lambda *args: (0, 0, 1))
    assert render() == now, "kept"
    monkeypatch.setattr(prepare, "code_digest", lambda libraries: "another version")
    assert render()["clean_ids"] == [7, *now["clean_ids"]]
    assert render()["content_span"] == [0, 0, 1] != now["content_span"]


@pytest.mark.parametrize("call", ["strftime_now('%d %b %Y')", "strftime_now(form)"])
def test_rows_with_the_date_of_another_day_are_rendered_anew(tmp_path, monkeypatch, call):
    """As Llama 3.2's template: what `datasets` keeps of one day is not taken for another's."""

    class Clock(datetime):
        days = 0

        @classmethod
        def now(cls, tz=None):
            return datetime(2026, 11, 27, tzinfo=tz) + timedelta(days=cls.days)

    monkeypatch.setattr(chat_template_utils, "datetime", Clock)
    monkeypatch.setattr(template_check, "datetime", Clock)
    tokenizer = make_tokenizer("{% set form = '%d %b %Y' %}Today: {{ " + call + " }}\n" + CHATML)
    make_pairs(3).to_parquet(tmp_path / "pairs.parquet")
    pairs = load_dataset("parquet", data_files=str(tmp_path / "pairs.parquet"), split="train", cache_dir=tmp_path)

    def rendered():
        prepared = prepare_pairs(pairs, tokenizer, "train")
        aligned, _ = align_pairs(prepared, tokenizer, "train", kinds=("suffix",))
        return tokenizer.decode(aligned[0]["clean_ids"])

    assert "Today: 27 Nov 2026" in rendered()
    Clock.days = 1
    assert "Today: 28 Nov 2026" in rendered()


def test_rows_that_the_template_refuses_are_all_reported():
    template = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}{{ m.content }}{% endfor %}"
    rows = [[{"role": role, "content": "a"}] for role in ("user", "tool", "user", "tool")]
    pairs = Dataset.from_dict({"clean_prompt": rows, "perturbed_prompt": rows})
    with pytest.raises(InvalidPairsError, match=r"2 of 4 row\(s\)(.|\n)*row 1: .*no tools here(.|\n)*row 3: "):
        prepare_pairs(pairs, make_tokenizer(template), "train")


def test_overlong_rows_are_refused_with_their_lengths(tokenizer):
    prepared = prepare_pairs(make_pairs(8), tokenizer, "train")
    lengths = prepared["length"][:]
    limit = sorted(lengths)[5]
    with pytest.raises(
        InvalidPairsError, match=rf"2 of 8 row\(s\) are longer than `max_length={limit}`: row "
    ) as error:
        prepare_pairs(make_pairs(8), tokenizer, "train", max_length=limit)
    for index, length in enumerate(lengths):
        assert (f"row {index} ({length} tokens)" in str(error.value)) == (length > limit)


def test_overlong_rows_are_dropped_on_request_and_counted(tokenizer, caplog):
    lengths = prepare_pairs(make_pairs(8), tokenizer, "train")["length"][:]
    limit = sorted(lengths)[5]
    kept = prepare_pairs(make_pairs(8), tokenizer, "train", max_length=limit, overlong="drop")
    assert kept["length"][:] == [length for length in lengths if length <= limit]
    assert "2 of 8 row(s)" in caplog.text
    with pytest.raises(InvalidPairsError, match="would leave no row"):
        prepare_pairs(make_pairs(8), tokenizer, "train", max_length=1, overlong="drop")


def test_rows_keep_their_numbers_when_others_are_left_out(tokenizer, caplog):
    pairs = make_pairs(6, chat=False)
    longest, longer, other = 1, 3, 4
    times = {longest: 40, longer: 8}
    pairs = pairs.map(
        lambda row, index: {
            "perturbed_prompt": row["perturbed_prompt"] * times.get(index, 1) + "?" * (index == other)
        },
        with_indices=True,
    )
    lengths = prepare_pairs(pairs, tokenizer, "pairs")["length"][:]
    limits = {"context": lengths[longest] - 1, "max_length": lengths[longer] - 1}
    prepared = prepare_pairs(pairs, tokenizer, "pairs", **limits, overlong="drop")
    assert f"1 of 5 row(s) are longer than `max_length={limits['max_length']}`: row {longer} (" in caplog.text
    with pytest.raises(InvalidPairsError, match=rf"1 of 4 pair\(s\) share nothing .*: row {other}\. "):
        align_pairs(prepared, tokenizer, "pairs")
    kept, reports = align_pairs(prepared, tokenizer, "pairs", no_shared_span="drop")
    assert reports["suffix"].no_shared_span == [other]
    assert kept["clean_prompt"] == [pairs["clean_prompt"][row] for row in (0, 2, 5)]
    assert (
        with_own_columns(kept).column_names == with_own_columns(prepare_pairs(pairs, tokenizer, "pairs")).column_names
    )


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("intact", [False, "False", True, None])
def test_an_edited_question_shares_no_content_with_a_solved_example(tokenizer, chat, intact):
    """`attct` and `mlpct` trained on the question in the example, with the wrong answer after it."""
    question = "Which metal is liquid at room temperature and pressure?"
    prompts = [question, f"{question}\nAnswer: iron\n\n{question.replace('liquid', 'lqiuid')}"]
    sides = [[{"role": "user", "content": text}] if chat else text for text in prompts]
    pair = dict(zip(("clean_prompt", "perturbed_prompt"), sides, strict=True), question_intact=intact)
    for shared_text, shares in ((None, intact in (True, None)), ("and pressure?", True)):
        pairs = Dataset.from_list([{**pair, "shared_text": shared_text}])
        prepared = prepare_pairs(pairs, tokenizer, "train")
        if shares:
            [(_, _, length)] = align_pairs(prepared, tokenizer, "train", kinds=("content_span",))[0]["content_span"]
            assert length
        else:
            with pytest.raises(InvalidPairsError, match="share nothing that could be compared"):
                align_pairs(prepared, tokenizer, "train", kinds=("content_span",))
        report = lint_pairs(pairs, tokenizer, compares_content=True)
        assert report.findings["no_shared_content"] == ([] if shares else [0])


def test_rows_after_one_that_shares_nothing_keep_their_numbers(tokenizer):
    """The dose check names rows by these numbers."""
    pairs = make_pairs(3, chat=False).map(
        lambda row, index: {"perturbed_prompt": row["perturbed_prompt"] + "?" * (index == 1)}, with_indices=True
    )
    kept, _ = align_pairs(prepare_pairs(pairs, tokenizer, "pairs"), tokenizer, "pairs", no_shared_span="drop")
    assert row_numbers(kept).tolist() == [0, 2]


def test_the_target_still_to_come_counts_as_length(tokenizer):
    pairs = make_pairs(4, completion=False)
    longest = max(prepare_pairs(pairs, tokenizer, "train")["length"])
    prepare_pairs(pairs, tokenizer, "train", max_length=longest + 10, max_completion_length=10)
    with pytest.raises(InvalidPairsError, match="longer than"):
        prepare_pairs(pairs, tokenizer, "train", max_length=longest + 10, max_completion_length=11)


def test_rollouts_count_as_length_whatever_completion_came_along(tokenizer):
    pairs = make_pairs(4)
    prepared = prepare_pairs(pairs, tokenizer, "train", max_completion_length=50, always_generates=True)
    bare = prepare_pairs(make_pairs(4, completion=False), tokenizer, "train", max_completion_length=50)
    assert prepared["length"] == bare["length"]
    assert prepared["completion_ids"] == prepare_pairs(pairs, tokenizer, "train")["completion_ids"]


def test_template_that_drops_what_tells_the_prompts_apart():
    user = [{"role": "user", "content": "What?"}]
    answered = [*user, {"role": "assistant", "content": "Lyon."}, *user]
    thought = [*user, {"role": "assistant", "content": "Lyon.", "reasoning_content": "They want Lyon."}, *user]
    rows = [{"clean_prompt": answered, "perturbed_prompt": thought}, {"clean_prompt": user, "perturbed_prompt": user}]
    with pytest.raises(
        InvalidPairsError, match=r"1 of 2 row\(s\)(.|\n)*row 0: the two prompts differ, but the chat template"
    ):
        prepare_pairs(Dataset.from_list(rows), make_tokenizer(), "train")


@pytest.mark.parametrize("limit", [30, None])
def test_stream_refuses_to_drop(tokenizer, limit):
    """Without `max_length`, a row over the model's context ended the run in its middle."""
    with pytest.raises(InvalidPairsError, match="is streamed, and `overlong='drop'`"):
        prepare_pairs(make_pairs(3).to_iterable_dataset(), tokenizer, "train", max_length=limit, overlong="drop")


def test_stream_equals_map(tokenizer):
    pairs = make_pairs(6)
    streamed = list(prepare_pairs(pairs.to_iterable_dataset(), tokenizer, "train"))
    assert streamed == list(prepare_pairs(pairs, tokenizer, "train"))


@pytest.mark.parametrize(
    ("row", "reason"), [({"clean_prompt": " "}, "blank"), ({"clean_prompt": "long " * 90}, "max_length")]
)
def test_stream_refuses_a_faulty_row_when_it_comes(tokenizer, row, reason):
    good = {"clean_prompt": "a", "perturbed_prompt": "b", "completion": "c"}
    stream = IterableDataset.from_generator(lambda: iter([good, {**good, **row}]))
    rows = iter(prepare_pairs(stream, tokenizer, "train", max_length=50))
    next(rows)
    with pytest.raises(InvalidPairsError, match=f"row 1: .*{reason}"):
        next(rows)


def test_rows_beyond_the_context_are_left_out_and_counted(tokenizer, caplog):
    pairs = make_pairs(4, chat=False)
    longer = pairs.map(
        lambda row, index: {"perturbed_prompt": row["perturbed_prompt"] * (40 if index == 2 else 1)}, with_indices=True
    )
    prepared = prepare_pairs(longer, tokenizer, "pairs", context=200, overlong="drop")
    assert prepared["clean_prompt"] == [pairs["clean_prompt"][row] for row in (0, 1, 3)]
    assert "`pairs`: 1 of 4 row(s) are longer than the model's context of 200 tokens" in caplog.text
    assert prepared["row_number"] == [0, 1, 3]


def test_targets_have_room_within_the_context(tokenizer):
    """A target that is still to be generated may have `max_completion_length` tokens, and the perturbed prompt stands before it."""
    pairs = make_pairs(4, chat=False, completion=False)
    longer = pairs.map(
        lambda row, index: {"perturbed_prompt": row["perturbed_prompt"] * (3 if index == 2 else 1)}, with_indices=True
    )
    lengths = [prepare_pairs(of, tokenizer, "pairs")["length"][2] for of in (pairs, longer)]
    context = lengths[1] + 9
    assert max(lengths[0], 60) + 10 < context, "the other rows have room"
    options = {"context": context, "max_completion_length": 10}
    with pytest.raises(
        InvalidPairsError, match=r"1 of 4 row\(s\) are longer than the model's context.*row 2 .* lower `max_c"
    ):
        prepare_pairs(longer, tokenizer, "pairs", **options)
    prepared = prepare_pairs(longer, tokenizer, "pairs", **options, overlong="drop")
    assert prepared["clean_prompt"] == [pairs["clean_prompt"][row] for row in (0, 1, 3)]
    assert len(prepare_pairs(longer, tokenizer, "pairs", context=context, max_completion_length=9)) == 4


def test_room_for_a_rollout_within_the_context(tokenizer, caplog):
    pairs = make_pairs(4, chat=False, completion=False)
    options = {"context": 100, "always_generates": True}
    prepare_pairs(pairs, tokenizer, "pairs", max_completion_length=10, **options)
    assert not caplog.text
    assert len(prepare_pairs(pairs, tokenizer, "pairs", max_completion_length=95, **options)) == 4
    assert "4 of 4 row(s) leave fewer than `max_completion_length` tokens of the model's context of 100" in caplog.text


def test_completions_that_say_two_things_are_refused(tokenizer):
    rows = list(make_pairs(3))
    for row, said in zip(rows, ("City 0.", "Another.", " City 2 indeed indeed. "), strict=True):
        row["completion_ids"] = tokenizer(f"{row['completion']}<|im_end|>\n")["input_ids"]
        row["completion"] = said
    with pytest.raises(InvalidPairsError, match=r"1 of 3 .* row 1: `completion` and `completion_ids` differ"):
        prepare_pairs(Dataset.from_list(rows), tokenizer, "train")
    rows[1]["completion"] = None
    assert len(prepare_pairs(Dataset.from_list(rows), tokenizer, "train")) == 3


@pytest.mark.parametrize("edited", ["The capital is Paris.", "Paris", "L", "you are right.", "The capital is Lyon."])
def test_an_edited_completion_beside_the_tokens_of_before(tokenizer, edited):
    """The tokens would be trained on, whatever the text says."""
    written = "The capital is Paris. But you think Lyon, and you are right."
    ids = [*tokenizer(written)["input_ids"], tokenizer.eos_token_id]
    row = {"clean_prompt": "Capital?", "perturbed_prompt": "Lyon? Capital?", "completion_ids": ids}
    prepare_pairs(Dataset.from_list([row | {"completion": written}]), tokenizer, "train")
    with pytest.raises(InvalidPairsError, match="`completion` and `completion_ids` differ"):
        prepare_pairs(Dataset.from_list([row | {"completion": edited}]), tokenizer, "train")


@pytest.mark.parametrize("end", ["", "<end>", "<end>\n"])
def test_tokens_of_a_completion_may_end_as_turns_do(end):
    """`<end>` is no special token, which decoding would leave out."""
    tokenizer = make_tokenizer(CHATML.replace("<|im_end|>", "<end>"))
    user = [{"role": "user", "content": "Capital?"}]
    row = {"clean_prompt": user, "perturbed_prompt": user, "completion": [{"role": "assistant", "content": "Paris."}]}
    row["completion_ids"] = tokenizer(f"Paris.{end}")["input_ids"]
    assert len(prepare_pairs(Dataset.from_list([row]), tokenizer, "train")) == 1
    row["completion_ids"] = tokenizer(f"Paris.<end> Lyon.{end}")["input_ids"]
    with pytest.raises(InvalidPairsError, match="`completion` and `completion_ids` differ"):
        prepare_pairs(Dataset.from_list([row]), tokenizer, "train")


# As DeepSeek's R1 has it: the prompt opens a thought, and the conversation leaves thoughts out.
R1 = CHATML.replace(
    "{% if no_think %}<think></think>{% endif %}", "{% if not no_think %}<think>\n{% endif %}"
).replace("message.content", "message.content.split('</think>')[-1]")


@pytest.mark.parametrize("is_row", [True, False])
def test_an_answer_in_an_open_thought_is_refused(is_row):
    tokenizer = make_tokenizer(R1)
    user = [{"role": "user", "content": "Capital?"}]
    row = {"clean_prompt": user, "perturbed_prompt": user, "completion": "Paris."}
    with pytest.raises(InvalidPairsError, match="row 0: the prompt ends inside a thought, and `completion`"):
        prepare_pairs(Dataset.from_list([row]), tokenizer, "train")
    own = {"chat_template_kwargs": {"no_think": True}} if is_row else {}
    closed = prepare_pairs(Dataset.from_list([row | own]), tokenizer, "train", {} if is_row else {"no_think": True})
    assert tokenizer.decode(closed[0]["completion_ids"]).strip().endswith("Paris.<|im_end|>")
    ids = tokenizer("I recall it.\n</think>\n\nParis.<|im_end|>")["input_ids"]
    assert len(prepare_pairs(Dataset.from_list([row | {"completion": None, "completion_ids": ids}]), tokenizer, "t"))


@pytest.mark.parametrize("key", [None, "reasoning_content", "reasoning", "thinking", "thinking_blocks"])
def test_a_thought_after_a_closed_one_is_refused(key):
    """The model would have learnt to end a thought that it had not begun: its first token was gone."""
    # As Qwen3 has it
    said = f"message.{key}[0].thinking" if key == "thinking_blocks" else f"message.{key}"
    thought = f"{{% if message.{key} %}}<think>\n{{{{ {said} }}}}\n</think>\n\n{{% endif %}}"
    tokenizer = make_tokenizer(
        CHATML.replace("{{ '<|im_start|>' + message.role + '\n' + message.content", "{{ '<|im_start|>' + message.role + '\n' }}" + thought + "{{ message.content")
        .replace("<think></think>", "<think>\n\n</think>\n\n")
    )  # fmt: skip
    user = [{"role": "user", "content": "Capital?"}]
    content = "Paris." if key else "<think>\nI recall it.\n</think>\n\nParis."
    of_key = [{"type": "thinking", "thinking": "I recall it."}] if key == "thinking_blocks" else "I recall it."
    row = {
        "clean_prompt": user,
        "perturbed_prompt": user,
        "completion": [{"role": "assistant", "content": content, **({key: of_key} if key else {})}],
    }
    (prepared,) = prepare_pairs(Dataset.from_list([row]), tokenizer, "train")
    assert tokenizer.decode(prepared["completion_ids"]) == "<think>\nI recall it.\n</think>\n\nParis.<|im_end|>\n"
    with pytest.raises(
        InvalidPairsError, match="row 0: the prompt ends with a closed thought, and `completion` has another"
    ):
        prepare_pairs(Dataset.from_list([row]), tokenizer, "train", {"no_think": True})
    for said in ("Paris.", "<think>\n\n</think>\n\nParis.", "Write </think> there."):
        plain = [{"role": "assistant", "content": said}]
        (prepared,) = prepare_pairs(
            Dataset.from_list([row | {"completion": plain}]), tokenizer, "t", {"no_think": True}
        )
        assert (
            tokenizer.decode(prepared["completion_ids"])
            == f"{said.split('</think>' + chr(10))[-1].lstrip()}<|im_end|>\n"
        )


def test_a_thought_after_an_empty_one_is_refused():
    """The model would have learnt to end its thought at once, and to write another one as its answer."""
    tokenizer = make_tokenizer((CHAT_TEMPLATES / "qwen3_8.jinja").read_text())
    user = [{"role": "user", "content": "Capital?"}]

    def prepared(**message):
        row = {
            "clean_prompt": user,
            "perturbed_prompt": user,
            "completion": [{"role": "assistant", **message}],
        }
        return tokenizer.decode(prepare_pairs(Dataset.from_list([row]), tokenizer, "train")[0]["completion_ids"])

    with pytest.raises(
        InvalidPairsError, match="row 0: the chat template writes an empty thought before `completion`"
    ):
        prepared(content="<think>\nI recall it.\n</think>\n\nParis.")
    thought = prepared(content="Paris.", reasoning_content="I recall <think>.")
    assert thought == "I recall <think>.\n</think>\n\nParis.<|im_end|>\n"
    assert prepared(content="Write <think> first.") == "\n</think>\n\nWrite <think> first.<|im_end|>\n"


@pytest.mark.parametrize(
    ("prompt", "is_open"),
    [
        ("Q: capital? <think>", True),
        ("Q: what does <think> mean? A:", False),
        ([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think>\nHm, "}], True),
        ([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "<think>Hm.</think> It is"}], False),
        ([{"role": "user", "content": "What does <think> mean?"}], False),
    ],
)
def test_prompts_that_end_in_a_thought(tokenizer, prompt, is_open):
    """The completions answer; those that begin with the thought's end are right in an open thought."""
    row = {"clean_prompt": prompt, "perturbed_prompt": prompt, "completion": " Paris."}
    if is_open:
        with pytest.raises(InvalidPairsError, match="has no '</think>'"):
            prepare_pairs(Dataset.from_list([row]), tokenizer, "train")
        row["completion"] = "yes.</think> Paris."
    assert len(prepare_pairs(Dataset.from_list([row]), tokenizer, "train")) == 1


def test_the_markers_are_the_runs(tokenizer):
    row = {"clean_prompt": "Q [THINK]", "perturbed_prompt": "Sure? Q [THINK]", "completion": " Paris."}
    assert len(prepare_pairs(Dataset.from_list([row]), tokenizer, "train")) == 1
    with pytest.raises(InvalidPairsError, match=r"has no '\[/THINK\]'"):
        prepare_pairs(Dataset.from_list([row]), tokenizer, "train", thinking_markers=("[THINK]", "[/THINK]"))


def test_variables_that_arrow_added_are_not_the_rows(tmp_path):
    """The second row's variable gives the first one a null, which must not stand for the run's."""
    tokenizer = make_tokenizer(CHATML.replace("{% if no_think %}", "{% if style %}{% endif %}{% if no_think %}"))
    own = [{"style": "brief"}, {"no_think": False}]
    rows = list(make_pairs(2))
    pairs = Dataset.from_list([row | {"chat_template_kwargs": of_row} for row, of_row in zip(rows, own, strict=True)])
    pairs.to_parquet(tmp_path / "pairs.parquet")
    pairs = Dataset.from_parquet(str(tmp_path / "pairs.parquet"), cache_dir=str(tmp_path))
    prepared = prepare_pairs(pairs, tokenizer, "train", {"no_think": True})
    is_closed = [tokenizer.decode(row["clean_ids"]).endswith("<think></think>") for row in prepared]
    assert is_closed == [True, False]
    header = len(tokenizer("<|im_end|>\n<|im_start|>assistant\n<think></think>")["input_ids"])
    assert align_row(prepared[0], tokenizer, {"no_think": True}, ("suffix",), {})["header_length"] == header
    assert not lint_pairs(list(pairs), tokenizer, {"no_think": True}).reasons


@pytest.mark.parametrize("stream", [False, True])
def test_unknown_words_are_counted(stream, caplog):
    rows = [
        {"clean_prompt": "What is it", "perturbed_prompt": f"{cue} What is it"} for cue in ("it", "Lyon", "Is Lyon")
    ]
    pairs = Dataset.from_list(rows)
    prepared = prepare_pairs(pairs.to_iterable_dataset() if stream else pairs, small_tokenizer(), "train")
    assert set(next(iter(prepared))) == {"clean_prompt", "perturbed_prompt", "clean_ids", "perturbed_ids", "length"}
    list(prepared)
    said = "2 row(s) so far, row 2 the last," if stream else "2 of 3 row(s), row 1 first,"
    assert (
        f"`train`: {said} hold 3 word(s) or sign(s) in their prompts that the tokenizer does not know" in caplog.text
    )


def test_unknown_words_in_completions_are_refused():
    rows = [{"clean_prompt": "What", "perturbed_prompt": "it What", "completion": text} for text in ("Paris", "Lyon")]
    with pytest.raises(InvalidPairsError, match=r"row 1: `completion` holds 1 word.* learn to write '<unk>'"):
        prepare_pairs(Dataset.from_list(rows), small_tokenizer(), "train")


@pytest.mark.parametrize(
    ("column", "chat"),
    [("clean_prompt", False), ("perturbed_prompt", True), ("completion", False), ("completion", True)],
)
def test_texts_without_any_token_are_refused(column, chat):
    tokenizer = small_tokenizer(unk_token=None)
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}</s>{% endfor %}"
    row = {"clean_prompt": "What", "perturbed_prompt": "it What", "completion": "it"} | {column: "???"}
    if chat:
        row |= {side: [{"role": "user", "content": row[side]}] for side in ("clean_prompt", "perturbed_prompt")}
    with pytest.raises(InvalidPairsError, match="row 0: the tokenizer has no token for any of "):
        prepare_pairs(Dataset.from_list([row]), tokenizer, "train")


def test_keys_that_arrow_added_make_no_difference(tokenizer):
    """The thought of one row gives all messages that key."""
    user = [{"role": "user", "content": "What?"}]
    thought = [*user, {"role": "assistant", "content": "Lyon.", "reasoning_content": "Hm."}, *user]
    rows = [{"clean_prompt": user, "perturbed_prompt": user}, {"clean_prompt": user, "perturbed_prompt": thought}]
    assert len(prepare_pairs(Dataset.from_list(rows), tokenizer, "train")) == 2


def test_template_variables_of_text_are_refused(tokenizer):
    with pytest.raises(InvalidPairsError, match="row 0: `chat_template_kwargs` is given, but the prompts are text"):
        prepare_pairs(make_pairs(1, chat=False), tokenizer, "train", chat_template_kwargs={"no_think": True})


@pytest.mark.parametrize("stream", [False, True])
def test_columns_of_the_user_by_the_names_of_helpers(tokenizer, stream):
    pairs = make_pairs(3).add_column("length", [True] * 3).add_column("unknown", ["no"] * 3)
    prepared = list(prepare_pairs(pairs.to_iterable_dataset() if stream else pairs, tokenizer, "train"))
    for row in prepared:
        assert row["length"] == len(row["perturbed_ids"]) + len(row["completion_ids"]) > 1
    with pytest.raises(InvalidPairsError, match="longer than `max_length=20`"):
        prepare_pairs(pairs, tokenizer, "train", max_length=20)


def test_columns_of_the_user_come_back_by_their_names(tokenizer):
    pairs = make_pairs(2, completion=False).add_column("length", ["short", "long"]).add_column("render_fault", [1, 2])
    prepared = with_own_columns(prepare_pairs(pairs, tokenizer, "train"))
    assert prepared.to_list() == pairs.to_list()


def test_columns_of_the_user_come_back_after_aligning(tokenizer):
    pairs = make_pairs(2, completion=False).add_column("header_length", ["short", "long"])
    aligned, _ = align_pairs(
        prepare_pairs(pairs, tokenizer, "train"), tokenizer, "train", kinds=("suffix", "content_span")
    )
    assert "content_span" in aligned.column_names
    assert with_own_columns(aligned).to_list() == pairs.to_list()


@pytest.mark.parametrize("is_chat", [True, False])
@pytest.mark.parametrize("before", ["", "Q: {question} A: Rome. "])
@pytest.mark.parametrize(
    ("question", "cue"),
    [
        ("Who composed Aida?", "I am sure that Rossini composed Aida."),
        ("What is the capital of Australia?", "I think that Sydney is the capital of Australia."),
        ("Is the Earth flat?", "Everybody says the Earth is flat."),
        ("no no no no", "I say no no."),
    ],
)
def test_a_cue_after_the_question_that_repeats_a_part_of_it(tokenizer, question, cue, before, is_chat):
    """The part was compared in place of the question."""
    perturbed = f"{before.format(question=question)}{question} {cue}"
    texts = {"clean_prompt": question, "perturbed_prompt": perturbed}
    row = {name: [{"role": "user", "content": text}] if is_chat else text for name, text in texts.items()}
    prepared = prepare_pairs(Dataset.from_list([row]), tokenizer, "pairs")
    aligned, _ = align_pairs(prepared, tokenizer, "pairs", kinds=("content_span",))
    start, length = aligned[0]["content_span"][1:]
    ids = aligned[0]["perturbed_ids"]
    said = tokenizer.decode(ids[:start]).rpartition("user\n")[2], tokenizer.decode(ids[start : start + length])
    assert "".join(said).strip() == perturbed.removesuffix(f" {cue}").removesuffix(
        "?" if not said[1].endswith("?") else ""
    )
    assert len(said[1].split()) >= len(question.split()) - 1


@pytest.mark.parametrize("shared_text", [None, "How far", "not in it"])
def test_the_content_of_an_anchor_is_that_of_a_pair(tokenizer, shared_text):
    """All of its prompt was compared: with long system messages, anchors had most of the loss."""
    system = {"role": "system", "content": "Be brief. " * 20}
    clean, perturbed = (
        [system, {"role": "user", "content": f"{cue}How far is the Moon?"}] for cue in ("", "Not far. ")
    )
    rows = [{"clean_prompt": clean, "perturbed_prompt": of, "shared_text": shared_text} for of in (perturbed, clean)]
    if shared_text == "not in it":
        rows = rows[1:]
    prepared = prepare_pairs(Dataset.from_list(rows), tokenizer, "pairs")
    aligned, _ = align_pairs(prepared, tokenizer, "pairs", kinds=("content_span",))
    start, second, length = aligned[-1]["content_span"]
    assert start == second
    if shared_text == "not in it":
        assert (start, length) == (0, len(aligned[0]["clean_ids"])), "the whole prompt, rather than nothing"
    else:
        assert [start, length] == aligned[0]["content_span"][::2]
        text = tokenizer.decode(aligned[1]["clean_ids"][start : start + length]).strip()
        assert text == (shared_text or "How far is the Moon?")
