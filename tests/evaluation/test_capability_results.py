"""Results of capability, without a model: differences, findings and warnings."""

import json

import pytest

from trl_consistency.errors import ConsistencyError
from trl_consistency.evaluation import CapabilityResult
from trl_consistency.evaluation.capability import capability_figures, capability_findings, capability_warnings
from trl_consistency.evaluation.rates.intervals import Sample, estimate


def of_shares(values, **columns):
    return CapabilityResult(
        "accuracy", values, [1.0] * len(values), list(range(len(values))), "d", acc=values, **columns
    )


def of_texts(values, weights):
    return CapabilityResult("nats_per_token", values, weights, list(range(len(values))), "d")


def test_differences_are_paired_by_item():
    before, after = [1.0] * 30 + [0.0] * 10, [1.0] * 20 + [0.0] * 18 + [1.0] * 2
    found = of_shares(after).differences(of_shares(before))
    samples = [Sample([value == 1 for value in of], [str(row) for row in range(40)]) for of in (before, after)]
    expected = estimate(samples, lambda one, other: other - one, (-1.0, 1.0))
    assert list(found) == ["accuracy", "acc"]
    assert found["accuracy"].value == pytest.approx(-8 / 40)
    assert found["accuracy"].interval == pytest.approx(expected.interval)
    assert found["accuracy"].unit == "pp"


def test_texts_are_compared_by_token():
    """The difference is that of the means, and alike shifts have no interval, whatever the texts are."""
    weights = [1.0, 2.0, 7.0]
    before, after = of_texts([1.0, 2.0, 3.0], weights), of_texts([1.5, 2.5, 3.5], weights)
    difference = after.differences(before)["nats_per_token"]
    assert difference.value == pytest.approx(0.5)
    assert difference.interval == pytest.approx((0.5, 0.5))
    assert str(difference) == "0.500 nats per token [0.500, 0.500] (n=3)"
    assert before.value == pytest.approx(2.6)
    assert before.figures()["nats_per_token"].value == pytest.approx((1 + 4 + 21) / 10)


@pytest.mark.parametrize("change", [{"digest": "e"}, {"weights": [2.0, 1.0]}, {"metric": "refused"}])
def test_other_items_are_not_compared(change):
    before = of_texts([1.0, 2.0], [1.0, 1.0])
    other = CapabilityResult.from_dict(before.to_dict() | change)
    with pytest.raises(ConsistencyError, match="of different items"):
        other.differences(before)


def test_results_survive_json():
    for result in (of_shares([1.0, 0.0], unread=[1]), of_texts([1.25, 2.0], [3.0, 4.0])):
        kept = json.loads(json.dumps(result.to_dict()))
        assert CapabilityResult.from_dict(kept) == result
        assert kept["value"] == result.value


def test_findings_name_what_was_lost():
    def results(share, nats, refused):
        shares = [float(row < share) for row in range(100)]
        texts = [nats + row % 11 / 100 for row in range(99)] + [nats + 0.05]
        rows = list(range(100))
        replies = CapabilityResult("refused", [float(row < refused) for row in rows], [1.0] * 100, rows, "d")
        return {"arc": of_shares(shares), "gsm8k": of_texts(texts, [2.0] * 100), "xstest": replies}

    base = results(60, 1.0, 10)
    assert list(capability_figures(base)) == ["accuracy/arc", "acc/arc", "nats_per_token/gsm8k", "refused/xstest"]
    assert capability_findings(base, base) == []
    assert capability_findings(results(80, 0.5, 2), base) == [], "what got better"
    worse = capability_findings(results(40, 1.5, 40), base)
    assert [finding.split(":")[0] for finding in worse] == [
        "Accuracy of completions (arc) fell from 60 to 40 of 100",
        "Negative log-probability of texts (gsm8k) rose from 1.050 to 1.550 nats per token",
        "Safe prompts refused (xstest) rose from 10 to 40 of 100",
    ]
    assert "-20.0 points [" in worse[0]
    assert "+0.500 [+0.500, +0.500]" in worse[1]


@pytest.mark.parametrize("kind", ["texts", "questions", "prompts"])
def test_a_file_of_few_items_is_warned_of(kind):
    """Its figure could get worse by any amount, and nothing said so. Of shares, that is true of four items, too."""
    of = {
        "texts": lambda values: of_texts(values, [3.0] * len(values)),
        "questions": of_shares,
        "prompts": lambda values: CapabilityResult("refused", values, [1.0] * len(values), [*range(len(values))], "d"),
    }[kind]
    before, after = (of([float(value)]) for value in ((0, 1) if kind != "questions" else (1, 0)))
    assert capability_findings({"mine": after}, {"mine": before}) == []
    more = 2 if kind == "texts" else 5
    found = capability_warnings({"mine": after, "few": of([1.0] * (more - 1)), "more": of([1.0] * more)})
    assert [text[:64] for text in found] == [
        f"{name} has {count} item(s): no change of its figure is beyond an interval, so"[:64]
        for name, count in (("mine", 1), ("few", more - 1))
    ]
