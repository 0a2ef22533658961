import subprocess
import sys

import pytest

from trl_consistency.evaluation.graders import stated_answer


@pytest.mark.parametrize(
    ("text", "candidates", "stated"),
    [
        ("Paris is the capital of France.", ["Madrid", "Paris"], "Paris"),
        ("The capital is Paris, not Madrid.", ["Madrid", "Paris"], "Paris"),
        # a candidate inside another word
        ("Romania is a country.", ["Oman"], None),
        ("It is in Romania, near Oman.", ["Oman", "Romania"], "Romania"),
        ("Parisians say so.", ["Paris"], None),
        # ... or joined to one by a hyphen
        ("Guinea-Bissau is small.", ["Guinea"], None),
        ("Guinea-Bissau is small.", ["Guinea", "Guinea-Bissau"], "Guinea-Bissau"),
        ("Is it Port-Louis?", ["Louis"], None),
        # several words
        ("New Delhi is the capital.", ["Delhi", "New Delhi"], "New Delhi"),
        ("New York City, surely.", ["New York", "New York City"], "New York City"),
        ("New  \n York it is.", ["New York"], "New York"),
        ("New things in York.", ["New York"], None),
        # numbers
        ("12 is the sum of 5 and 7.", ["1", "2", "5", "12"], "12"),
        ("About 3.5 of them.", ["3", "5"], None),
        ("1,200 people", ["1", "200"], None),
        ("It is 3.", ["3"], "3"),
        # case, punctuation, characters with a meaning in regular expressions
        ("As I said, he knows.", ["I", "He", "As"], "As"),
        ("no.", ["No"], None),
        ("(B) is right", ["A", "B"], "B"),
        ("C++ is older", ["C++", "Java"], "C++"),
        ("It is a.b", ["aXb", "a.b"], "a.b"),
        # accents
        ("São Paulo is large.", ["Paulo", "São Paulo"], "São Paulo"),
        ("", ["Paris"], None),
        ("Nothing of the kind.", ["Paris"], None),
        ("Paris", [], None),
        ("Paris", [""], None),
    ],
)
def test_stated_answer(text, candidates, stated):
    assert stated_answer(text, candidates) == stated
    assert stated_answer(text, reversed(candidates)) == stated


def test_rates_and_graders_do_not_import_torch():
    code = "import sys, trl_consistency.evaluation.rates, trl_consistency.evaluation.graders; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
