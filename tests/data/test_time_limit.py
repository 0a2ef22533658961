import signal
import sys
import threading
import time

import pytest

from tests.helpers.models import CHATML, make_pairs, make_tokenizer
from trl_consistency.data import rendering
from trl_consistency.data.lint import lint_pairs
from trl_consistency.data.prepare import prepare_pairs
from trl_consistency.data.rendering import render_prompt
from trl_consistency.data.time_limit import time_limit
from trl_consistency.errors import ConsistencyError


ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
RECURSIVE = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
USER = [{"role": "user", "content": "What?"}]


@pytest.mark.parametrize(
    "read",
    [
        lambda tokenizer: prepare_pairs(make_pairs(100), tokenizer, "train_dataset"),
        lambda tokenizer: lint_pairs(list(make_pairs(100)), tokenizer),
    ],
    ids=["prepare", "lint"],
)
def test_one_row_is_tried_and_no_more(read, monkeypatch):
    monkeypatch.setattr(rendering, "RENDERING_SECONDS", 0.2)
    tokenizer, start = make_tokenizer(CHATML + ENDLESS), time.monotonic()
    with pytest.raises(ConsistencyError, match="does not come to an end"):
        read(tokenizer)
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("template", [ENDLESS, RECURSIVE], ids=["loops", "macros"])
def test_template_without_end_is_stopped(template, monkeypatch):
    monkeypatch.setattr(rendering, "RENDERING_SECONDS", 0.2)
    tokenizer = make_tokenizer(CHATML + template)
    with pytest.raises(
        ConsistencyError, match=r"begins with 'What\?', does not come to an end: .* after 0\.2 seconds"
    ):
        render_prompt(tokenizer, USER)


@pytest.mark.parametrize(
    ("template", "message", "seconds"),
    [
        ("{{ 'a' * 10**16 }}", "takes more memory than there is", 3),
        ("{{ 'a' * 10**6 }}", "writes 1000052 characters, more than any model can read", 3),
        ("{% set n = 9**9 %}{{ n**n > 1 }}", "does not come to an end", 0.3),
        ("{{ lipsum(n=10**9) }}", "does not come to an end", 0.3),
    ],
    ids=["memory", "text", "number", "global"],
)
def test_huge_expression_is_stopped(template, message, seconds, monkeypatch):
    monkeypatch.setattr(rendering, "RENDERING_SECONDS", seconds)
    monkeypatch.setattr(rendering, "MOST_CHARACTERS", 10**5)
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ConsistencyError, match=message):
        render_prompt(make_tokenizer(CHATML + template), [{"role": "user", "content": "Hi"}])
    assert signal.getsignal(signal.SIGALRM) == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


@pytest.mark.parametrize("seconds", [0.05, 0.3])
def test_process_that_has_to_wait_is_not_stopped(seconds):
    """A machine that is busy, or was asleep, says nothing about the template."""
    template = compile("import time\ntime.sleep(0.6)\ndone = True", "<template>", "exec")
    names = {}
    with time_limit(seconds, "It"):
        exec(template, names)
    assert names["done"]


def test_template_is_stopped_in_another_thread_too(monkeypatch):
    monkeypatch.setattr(rendering, "RENDERING_SECONDS", 0.2)
    tokenizer, errors = make_tokenizer(CHATML + ENDLESS), []

    def render():
        try:
            render_prompt(tokenizer, USER)
        except ConsistencyError as error:
            errors.append(str(error))

    thread = threading.Thread(target=render, daemon=True)
    thread.start()
    thread.join(20)
    assert len(errors) == 1


def test_debuggers_keep_their_trace_function(tokenizer):
    def trace(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        render_prompt(tokenizer, USER)
        assert sys.gettrace() is trace
    finally:
        sys.settrace(before)
