"""docs/architectures.md says what the tests do."""

import pytest

from tests.passes import test_capture
from tests.support.page import PAGE, make_page, table
from tests.support.table import KINDS, NAMES, kinds_of, rows_of_objectives, rows_of_roads, rows_of_runs, runs_of


def test_page_is_made_of_the_tests():
    assert PAGE.read_text() == make_page(), "run `python -m tests.support.page`"


def test_how_many_architectures():
    assert len(KINDS) == 21
    assert set(KINDS) == set(NAMES)
    for cells in (rows_of_objectives(), rows_of_roads()):
        assert all(set(of_column) == set(KINDS) for of_column in cells.values())


def test_an_architecture_that_no_test_names_is_an_error():
    cells = rows_of_roads()
    del cells["padding-free"]["olmo3"]
    with pytest.raises(KeyError, match="olmo3"):
        table(cells)


def test_what_a_test_is_parametrized_with():
    @pytest.mark.parametrize(("kind", "attention"), [("llama", "sdpa"), ("gpt2", "eager")])
    @pytest.mark.parametrize("other", [1, 2])
    def test_something(kind, attention, other):
        pass

    assert kinds_of(test_something) == {"llama", "gpt2"}
    assert runs_of(test_something) == {"llama": "`make test`", "gpt2": "`make test`"}
    with pytest.raises(ValueError, match="test_something is run by `make slow`: it is no evidence"):
        kinds_of(pytest.mark.slow(test_something))


def test_both_sides_are_padded_everywhere():
    of_captured = {*test_capture.kind._fixture_function_marker.params}
    of_captured |= kinds_of(test_capture.test_padding_changes_nothing_on_hybrids)
    assert of_captured == {*rows_of_objectives()["OPCT"]} == {*KINDS}


def test_the_command_of_a_whole_run():
    @pytest.mark.parametrize("kind", ["llama", pytest.param("gpt2", marks=pytest.mark.long)])
    def test_something(kind):
        pass

    assert runs_of(test_something) == {"llama": "`make test`", "gpt2": "`make test-long`"}
    assert set(runs_of(pytest.mark.slow(test_something)).values()) == {"`make slow`"}
    with pytest.raises(ValueError, match="test_something is marked gpu: it is no evidence"):
        runs_of(pytest.mark.gpu(test_something))
    of_seven = {"qwen3_5", "qwen3_next", "lfm2", "granitemoehybrid", "nemotron_h", "gemma4", "olmo3"}
    assert all(set(of_column) == of_seven for of_column in rows_of_runs().values())
