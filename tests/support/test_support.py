"""docs/architectures.md says what the tests do."""

import pytest

from tests.support.page import PAGE, make_page, table
from tests.support.table import KINDS, NAMES, kinds_of, rows_of_objectives, rows_of_roads


def test_page_is_made_of_the_tests():
    assert PAGE.read_text() == make_page(), "run `python -m tests.support.page`"


def test_twenty_architectures():
    assert len(KINDS) == 20
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
    with pytest.raises(ValueError, match="test_something is marked slow: it is no evidence"):
        kinds_of(pytest.mark.slow(test_something))
