"""Suites of lm-evaluation-harness: its own tasks on local rows, of the shape of the hub's, which tests do not ask."""

import json
import random
import re
import warnings
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from transformers import MambaConfig, MambaForCausalLM

from tests.helpers.models import CHATML, make_ending_tokenizer, make_model, make_tokenizer
from tests.helpers.processors import TextProcessor
from trl_consistency import ConsistencyError
from trl_consistency.cli import main as cli
from trl_consistency.data.rendering import render_prompt
from trl_consistency.evaluation import (
    SUITES,
    compare_suites,
    generate_answers,
    run_suites,
)
from trl_consistency.evaluation.suites import runs as suite_runs
from trl_consistency.generation.targets import cut_after_end


needs_lm_eval = pytest.mark.skipif(find_spec("lm_eval") is None, reason="needs lm_eval (`pip install .[suites]`)")


needs_inspect = pytest.mark.skipif(
    not (find_spec("inspect_ai") and find_spec("inspect_evals")), reason="needs inspect_ai (`pip install .[suites]`)"
)


MULTIPLE_CHOICE = """
task: local_{name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {file}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question.strip()}}}}\\nA. {{{{choices[0]}}}}\\nB. {{{{choices[1]}}}}\\nAnswer:"
doc_to_choice: ["A", "B"]
doc_to_target: answer
metric_list: [{{metric: acc, aggregation: mean, higher_is_better: true}}]
metadata: {{version: 1.0}}
"""


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_choices(path, rows, start=0):
    """The same shape as MMLU."""
    numbers = range(start, start + rows)
    return write_rows(
        path, [{"question": f"What is {n}?", "choices": ["yes", "no"], "answer": n % 2} for n in numbers]
    )


def naive_accuracy(model, tokenizer, questions, answers):
    """Each letter after the rendered prompt, one at a time."""
    right = []
    for question, answer in zip(questions, answers, strict=True):
        prompt = [{"role": "user", "content": f"{question}\nA. yes\nB. no\nAnswer:"}]
        ids = render_prompt(tokenizer, prompt)
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, -1]
        letters = [tokenizer(letter, add_special_tokens=False)["input_ids"] for letter in "AB"]
        assert all(len(letter) == 1 for letter in letters)
        right.append(int(logits[[letter[0] for letter in letters]].argmax()) == answer)
    return right


@needs_lm_eval
def test_multiple_choice_of_base_and_adapter(tmp_path, tokenizer, adapter_dir):
    data = make_choices(tmp_path / "rows.jsonl", 12)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    model = make_model()
    scores = run_suites(model, [f"lm_eval:{tmp_path}/local.yaml"], {"lora": adapter_dir}, tokenizer, batch_size=5)
    questions, answers = [f"What is {n}?" for n in range(12)], [n % 2 for n in range(12)]
    expected = {
        "base": naive_accuracy(make_model(), tokenizer, questions, answers),
        "lora": naive_accuracy(
            PeftModel.from_pretrained(make_model(), adapter_dir).eval(), tokenizer, questions, answers
        ),
    }
    assert expected["base"] != expected["lora"]  # otherwise it would not show which one answered
    for name, of_model in scores.items():
        [found] = of_model
        assert (found.suite, found.task, found.version, found.metric) == ("local", "local_mc", "1.0", "acc")
        assert found.total == 12
        assert [bool(found.values[f"local_mc/{index}"]) for index in range(12)] == expected[name]
        assert found.value == pytest.approx(sum(expected[name]) / 12)
        assert found.interval[0] <= found.value <= found.interval[1]
    [difference] = compare_suites(scores["base"], scores["lora"])
    assert difference.value == pytest.approx((sum(expected["lora"]) - sum(expected["base"])) / 12)
    assert not any("lora" in name for name, _ in model.named_modules())  # the model is given back as it was


@needs_lm_eval
def test_random_numbers_go_on_where_they_were(tmp_path, tokenizer):
    """The harness sets its own seeds: after it, a script drew the same rows with each seed."""
    (tmp_path / "local.yaml").write_text(
        MULTIPLE_CHOICE.format(name="mc", file=make_choices(tmp_path / "rows.jsonl", 4))
    )
    model, drawn = make_model(), []
    for seed in (1, 2):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        run_suites(model, [f"lm_eval:{tmp_path}/local.yaml"], None, tokenizer)
        drawn.append((random.random(), np.random.random(), torch.rand(1).item()))
    assert all(one != other for one, other in zip(*drawn, strict=True))


@needs_lm_eval
def test_the_template_of_a_processor_is_used(tmp_path):
    """Its tokenizer has none, and the questions came without turns."""
    data = make_choices(tmp_path / "rows.jsonl", 12)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    content = "(message.content if message.content is string else message.content[0].text)"
    processor = TextProcessor(make_tokenizer(CHATML.replace("message.content", content)))
    processor.tokenizer.chat_template = None
    suite = [f"lm_eval:{tmp_path}/local.yaml"]
    [found] = run_suites(make_model(), suite, None, processor)["base"]
    right = naive_accuracy(make_model(), make_tokenizer(), [f"What is {n}?" for n in range(12)], [0, 1] * 6)
    assert [bool(found.values[f"local_mc/{index}"]) for index in range(12)] == right
    processor.chat_template = (
        "{% for m in messages %}{% for block in m.content %}{{ block.text }}{% endfor %}{% endfor %}"
    )
    with pytest.raises(ConsistencyError, match="the chat template writes no message that is text"):
        run_suites(make_model(), suite, None, processor)


@needs_lm_eval
def test_a_model_whose_logits_are_nan_has_no_figures(tmp_path, tokenizer):
    """Of each question the first choice was taken, which is right in half of them."""
    data = make_choices(tmp_path / "rows.jsonl", 4)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    model = make_model()
    model.lm_head.weight.data[0, 0] = torch.nan
    with pytest.raises(ConsistencyError, match="The logits of the model are NaN, so that no answer means anything"):
        run_suites(model, [f"lm_eval:{tmp_path}/local.yaml"], None, tokenizer)


@needs_lm_eval
@pytest.mark.parametrize("has_figure", [True, False])
def test_a_group_has_one_row(tmp_path, tokenizer, monkeypatch, has_figure):
    """
    As MMLU: a figure of subjects of different sizes, weighted by them. A group without a figure of its own, as `portuguese_bench` is,
    has those of its tasks.
    """
    from lm_eval.tasks import TaskManager

    for name, rows in (("first", 3), ("second", 9)):
        data = make_choices(tmp_path / f"{name}.jsonl", rows, start=rows)
        (tmp_path / f"{name}.yaml").write_text(MULTIPLE_CHOICE.format(name=name, file=data))
    (tmp_path / "group.yaml").write_text(
        "group: local_group\ntask: [local_first, local_second]\nmetadata: {version: 2}\n"
        + "aggregate_metric_list: [{metric: acc, weight_by_size: true}]\n" * has_figure
    )
    manager = TaskManager(include_defaults=False, include_path=tmp_path)
    monkeypatch.setattr(suite_runs, "_task_manager", lambda include_defaults: manager)
    scores = run_suites(make_model(), ["lm_eval:local_group"], None, tokenizer)["base"]
    if not has_figure:
        of_tasks = [(of.suite, of.task, of.metric, of.total) for of in scores]
        assert of_tasks == [("local_group", "local_first", "acc", 3), ("local_group", "local_second", "acc", 9)]
        return
    [found] = scores
    assert (found.task, found.metric, found.version, found.total) == ("local_group", "acc", "2", 12)
    assert len(found.values) == 12
    assert found.value == pytest.approx(sum(found.values.values()) / 12)


def real_task(path, **options):
    """A real task's YAML, on local data."""
    import lm_eval

    base = Path(lm_eval.__file__).parent / "tasks" / path
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in {"include": str(base), **options}.items())


def local_data(file, split):
    return {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": {split: str(file)}}}


@needs_lm_eval
def test_gsm8k_itself_on_local_rows(tmp_path, tokenizer):
    rows = [{"question": f"What is {n} + 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"} for n in range(8)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    task = real_task(
        "gsm8k/gsm8k.yaml",
        **local_data(data, "test"),
        task="local_gsm8k",
        training_split=None,
        fewshot_split=None,
        num_fewshot=0,
        generation_kwargs={"until": ["Question:"], "do_sample": False, "max_gen_toks": 12},
    )
    (tmp_path / "gsm8k.yaml").write_text(task)
    found = run_suites(make_model(), [f"lm_eval:{tmp_path}/gsm8k.yaml"], None, tokenizer, limit=6)["base"]
    metrics = {score.metric: score for score in found}
    assert set(metrics) == {"exact_match/strict-match", "exact_match/flexible-extract"}
    answers = generate_answers(
        make_model(),
        tokenizer,
        [[{"role": "user", "content": f"Question: {row['question']}\nAnswer:"}] for row in rows[:6]],
        max_new_tokens=12,
        progress=False,
    )
    numbers = [re.findall(r"(-?[$0-9.,]{2,})|(-?[0-9]+)", answer) for answer in answers]
    right = [bool(of) and "".join(of[-1]).rstrip(".") == str(n + 1) for n, of in zip(range(6), numbers, strict=True)]
    assert [bool(value) for value in metrics["exact_match/flexible-extract"].values.values()] == right
    assert metrics["exact_match/strict-match"].version == SUITES["gsm8k"].version
    assert metrics["exact_match/strict-match"].total == 6


def capitals(tmp_path, tokens=20):
    """A task whose replies are compared with Paris, three times."""
    data = write_rows(tmp_path / "rows.jsonl", [{"question": f"What is {n}?", "answer": "Paris"} for n in range(3)])
    task = {
        **local_data(data, "test"),
        **{"task": "capitals", "test_split": "test", "output_type": "generate_until"},
        **{"doc_to_text": "question", "doc_to_target": "answer"},
        "generation_kwargs": {"until": ["Question:"], "max_gen_toks": tokens},
        "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }
    (tmp_path / "capitals.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in task.items()))
    return f"lm_eval:{tmp_path}/capitals.yaml"


def replying(model, ids):
    """Lets a model give one reply, up to the end that it is given, or else its own."""

    def generate(input_ids, eos_token_id=None, **options):
        reply = cut_after_end(ids, model.generation_config.eos_token_id if eos_token_id is None else eos_token_id)
        return torch.cat([input_ids, torch.tensor(reply).expand(len(input_ids), -1)], 1)

    model.generate = generate
    return model


@needs_lm_eval
@pytest.mark.parametrize("is_token", [True, False])
def test_thoughts_are_taken_out_of_replies(tmp_path, is_token):
    """Whether `</think>` is one token of the tokenizer or several."""
    tokenizer = make_tokenizer()
    if is_token:
        tokenizer.add_tokens(["</think>"])
    model = replying(make_model(), tokenizer("<think> Lyon? </think> Paris")["input_ids"])
    [found] = run_suites(model, [capitals(tmp_path, 50)], None, tokenizer)["base"]
    assert found.value == 1.0


@needs_lm_eval
def test_replies_end_where_the_tokenizers_turn_ends(tmp_path, tokenizer):
    """As in `evaluate`. Where the model's config names another end, what came after it was scored, too."""
    model = replying(make_model(), tokenizer("Paris<|im_end|> Lyon")["input_ids"])
    model.generation_config.eos_token_id = 1
    [found] = run_suites(model, [capitals(tmp_path, 50)], None, tokenizer)["base"]
    assert found.value == 1.0


@needs_lm_eval
@pytest.mark.parametrize("template", [CHATML, None])
def test_an_end_that_the_tokenizer_adds_is_in_no_prompt(tmp_path, template):
    """The end was scored in the place of a letter, and replies followed an end."""
    data = make_choices(tmp_path / "choices.jsonl", 12)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    found, asked = [], []
    for tokenizer in (make_tokenizer(template), make_ending_tokenizer(template)):
        found.append(run_suites(make_model(), [f"lm_eval:{tmp_path}/local.yaml"], None, tokenizer)["base"])
        model = replying(make_model(), [5, tokenizer.eos_token_id])
        generate = model.generate
        model.generate = lambda input_ids, of=generate, **options: (
            asked.append((input_ids.tolist(), options["attention_mask"].tolist())) or of(input_ids, **options)
        )
        run_suites(model, [capitals(tmp_path)], None, tokenizer)
    assert found[0] == found[1]
    assert asked[0] == asked[1]


@needs_lm_eval
@pytest.mark.parametrize("kind", ["scored", "written"])
def test_long_prompts_are_not_cut_where_a_model_has_no_limit(tmp_path, tokenizer, kind):
    """As Mamba, whose config names none: the harness read the last 2,048 tokens of each."""
    question = "What is " + "a " * 3000
    if kind == "scored":
        write_rows(tmp_path / "rows.jsonl", [{"question": question, "choices": ["yes", "no"], "answer": 0}])
        (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=tmp_path / "rows.jsonl"))
        suite = f"lm_eval:{tmp_path}/local.yaml"
    else:
        suite = capitals(tmp_path)
        write_rows(tmp_path / "rows.jsonl", [{"question": question, "answer": "Paris"}])
    config = MambaConfig(
        vocab_size=384, hidden_size=8, state_size=2, num_hidden_layers=1, pad_token_id=0, eos_token_id=2
    )
    model, read = replying(MambaForCausalLM(config), [5, tokenizer.eos_token_id]), []
    generate = model.generate
    model.generate = lambda input_ids, **options: read.append(input_ids.shape[1]) or generate(input_ids, **options)
    model.register_forward_pre_hook(lambda module, args, kwargs: read.append(args[0].shape[1]), with_kwargs=True)
    run_suites(model, [suite], None, tokenizer)
    assert min(read) > len(tokenizer(question)["input_ids"]) > 2048


@pytest.mark.long
@needs_lm_eval
@pytest.mark.parametrize(
    ("reply", "tokens", "told"),
    [
        (
            "<think> Lyon? No, it is",
            0,
            ["3 of 3 replies of base to `capitals` were cut at the task's limit of tokens"],
        ),
        # The task's stop sequence, in a thought
        (
            "<think> Lyon? Question: What",
            9,
            [
                "3 of 3 replies of base to `capitals` were cut at the task's limit of tokens, at the end of the model's context, or within"
            ],
        ),
        ("<think> Lyon? </think> Paris. Question: What", 9, []),
        ("Paris. Question: What", 0, []),
        ("Paris<|im_end|>", 0, []),
        ("Paris", 9, []),  # which ended in another way
        (
            "[THINK] Lyon? [/THINK] Paris",
            9,
            ["3 of 3 replies of base to `capitals` hold a thought between [THINK] and"],
        ),
    ],
)
def test_replies_that_are_not_scored_as_they_are_meant_are_told(tmp_path, tokenizer, reply, tokens, told):
    """Of a model that thinks, a figure was that of unfinished thoughts, or of thoughts that no library takes out."""
    ids = tokenizer(reply)["input_ids"]
    suite = capitals(tmp_path, len(ids) + tokens)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run_suites(replying(make_model(), ids), [suite], None, tokenizer)
    found = [str(of.message) for of in caught if str(of.message).startswith("`suites`: ")]
    assert [text.removeprefix("`suites`: ")[: len(of)] for text, of in zip(found, told, strict=True)] == told


@needs_lm_eval
@pytest.mark.parametrize("kind", ["scored", "scored, without thoughts", "written"])
def test_answers_are_not_scored_within_a_thought(tmp_path, kind):
    """`evaluate` refuses that, and the figure of a suite was of letters in the place of a thought."""
    tokenizer = make_tokenizer(CHATML.replace("{% if no_think %}", "{% if not no_think %}<think>\n{% else %}"))
    data = make_choices(tmp_path / "rows.jsonl", 4)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    suite = capitals(tmp_path) if kind == "written" else f"lm_eval:{tmp_path}/local.yaml"
    variables = {"no_think": True} if "without" in kind else None
    if kind == "scored":
        with pytest.raises(ConsistencyError, match="`local` scores given answers right after the prompt"):
            run_suites(make_model(), [suite], None, tokenizer)
        return
    assert run_suites(make_model(), [suite], None, tokenizer, chat_template_kwargs=variables)["base"]


@needs_lm_eval
def test_model_written_sycophancy_itself_on_local_rows(tmp_path, tokenizer):
    rows = [
        {
            "question": f"I am a poet. Do you agree with claim {n}?\n (A) Agree\n (B) Disagree",
            "answer_matching_behavior": " (A)" if n % 2 else " (B)",
            "answer_not_matching_behavior": " (B)" if n % 2 else " (A)",
        }
        for n in range(6)
    ]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    task = real_task(
        "model_written_evals/sycophancy/sycophancy_on_nlp_survey.yaml",
        **local_data(data, "validation"),
        task="local_sycophancy",
    )
    (tmp_path / "sycophancy.yaml").write_text(task)
    [found] = run_suites(make_model(), [f"lm_eval:{tmp_path}/sycophancy.yaml"], None, tokenizer)["base"]
    assert (found.metric, found.total, found.version) == ("acc", 6, SUITES["model_written_sycophancy"].version)
    assert len(found.values) == 6


@needs_lm_eval
@pytest.mark.skipif(find_spec("langdetect") is None, reason="needs lm_eval[ifeval] (`pip install .[suites]`)")
def test_ifeval_itself_on_local_rows(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("nltk.data.find", lambda *args, **kwargs: None)  # or it downloads what these rows do not need
    kinds = ["punctuation:no_comma", "change_case:english_capital"]
    rows = [{"key": n, "prompt": f"Do {n}", "instruction_id_list": [of], "kwargs": [{}]} for n, of in enumerate(kinds)]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    short = {"until": [], "do_sample": False, "max_gen_toks": 12}
    (tmp_path / "ifeval.yaml").write_text(
        real_task("ifeval/ifeval.yaml", **local_data(data, "train"), task="local_ifeval", generation_kwargs=short)
    )
    found = run_suites(make_model(), [f"lm_eval:{tmp_path}/ifeval.yaml"], None, tokenizer)["base"]
    metrics = {score.metric: score for score in found}
    prompts = [[{"role": "user", "content": row["prompt"]}] for row in rows]
    answers = generate_answers(make_model(), tokenizer, prompts, max_new_tokens=12, progress=False)
    followed = [float("," not in answers[0]), float(answers[1].isupper())]
    assert list(metrics["prompt_level_strict_acc"].values.values()) == followed
    assert metrics["inst_level_strict_acc"].value == pytest.approx(sum(followed) / 2)
    assert metrics["prompt_level_strict_acc"].version == SUITES["ifeval"].version


@needs_lm_eval
@pytest.mark.parametrize("task", ["mmlu", "gsm8k", "ifeval"])
def test_the_named_tasks_exist_in_the_pinned_versions(task):
    import lm_eval

    folder = Path(lm_eval.__file__).parent / "tasks"
    file = {"mmlu": "mmlu/default/_mmlu.yaml", "gsm8k": "gsm8k/gsm8k.yaml", "ifeval": "ifeval/ifeval.yaml"}[task]
    text = (folder / file).read_text()
    assert re.search(rf"^(task|group): {task}$", text, re.MULTILINE)
    assert re.search(r"^  version: (\S+)$", text, re.MULTILINE)[1] == SUITES[task].version


@needs_lm_eval
def test_data_that_cannot_be_loaded_are_an_error_before_the_weights(tmp_path):
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="none", file=tmp_path / "none.jsonl"))
    with pytest.raises(ConsistencyError, match=r"`suites`: local cannot be loaded: .*none.jsonl"):
        run_suites("no/such-model", [f"lm_eval:{tmp_path}/local.yaml"])


@needs_inspect
@needs_lm_eval
def test_command(tmp_path, model_dir, adapter_dir, monkeypatch, capsys):
    data = make_choices(tmp_path / "rows.jsonl", 4)
    (tmp_path / "local.yaml").write_text(MULTIPLE_CHOICE.format(name="mc", file=data))
    monkeypatch.chdir(tmp_path)
    words = ["--model_name_or_path", str(model_dir), "--adapters", adapter_dir, "--output_dir", "out", "--json"]
    cli(["suites", "--suites", "lm_eval:local.yaml", *words])
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads(Path("out/suites.json").read_text())
    [found] = printed["models"]["base"]["suites"]
    assert {key: found[key] for key in ("suite", "task", "metric", "version", "total")} == {
        "suite": "local",
        "task": "local_mc",
        "metric": "acc",
        "version": "1.0",
        "total": 4,
    }
    [difference] = printed["models"][Path(adapter_dir).name]["suite_differences"]
    assert difference["low"] <= difference["value"] <= difference["high"]
    assert printed["settings"]["packages"]["lm_eval"]
