"""Packs of rows: each row whole and in one pack, and no pack over its limit."""

import random

import pytest
from datasets import Dataset

from trl_consistency.data import packing
from trl_consistency.data.packing import PackedPairs, PackedStream, best_fit


def naive_best_fit(lengths, max_length):
    packs = []
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        spaces = [max_length - sum(lengths[other] for other in pack) for pack in packs]
        fitting = [(space, number) for number, space in enumerate(spaces) if space >= lengths[text]]
        if fitting:
            packs[min(fitting)[1]].append(text)
        else:
            packs.append([text])
    return sorted(sorted(pack) for pack in packs)


def test_an_example():
    assert best_fit([5, 2, 3, 1], 6) == [[0, 3], [1, 2]]
    assert best_fit([3, 3, 3], 5) == [[0], [1], [2]]
    assert best_fit([4, 4], 8) == [[0, 1]]
    assert best_fit([], 8) == []


@pytest.mark.parametrize("seed", range(20))
def test_equals_the_naive_way(seed):
    generator = random.Random(seed)
    max_length = generator.randint(20, 200)
    lengths = [generator.randint(1, max_length) for _ in range(150)]
    assert best_fit(lengths, max_length) == naive_best_fit(lengths, max_length)


@pytest.fixture
def rows(monkeypatch):
    """Rows by seven, whose lengths are their values."""
    monkeypatch.setattr(packing, "ROWS", 7)
    return Dataset.from_dict({"length": [1 + (17 * row) % 10 for row in range(24)], "number": list(range(24))})


def length_of(row):
    return row["length"]


def test_each_row_is_in_one_pack_with_its_neighbours(rows):
    packed = PackedPairs(rows, length_of, 10)
    packs = [packed[index] for index in range(len(packed))]
    assert len(packed) < len(rows)
    assert sorted(row["number"] for pack in packs for row in pack) == list(range(24))
    assert all(sum(map(length_of, pack)) <= 10 for pack in packs)
    assert all(len({row["number"] // 7 for row in pack}) == 1 for pack in packs)
    assert packed.filled == sum(rows["length"]) / (10 * len(packed))


def test_a_stream_is_packed_alike(rows):
    packed = PackedPairs(rows, length_of, 10)
    assert list(PackedStream(rows.to_iterable_dataset(), length_of, 10)) == [packed[i] for i in range(len(packed))]
