"""Digests of pairs that were trained on."""

import io

import numpy as np
import pytest
from datasets import Dataset

from trl_consistency.data.folders import TRAINED_PAIRS
from trl_consistency.data.trained_pairs import among, digests_of, read_digests, write_digests


ROWS = [
    {"clean_ids": [1, 2], "perturbed_ids": [3]},
    {"clean_ids": [1], "perturbed_ids": [2, 3]},
    {"clean_ids": [], "perturbed_ids": [1, 2, 3]},
    {"clean_ids": [3], "perturbed_ids": [1, 2]},
    {"clean_ids": [1, 2], "perturbed_ids": [3, 3]},
]


def of(rows):
    return Dataset.from_dict({side: [row[side] for row in rows] for side in ("clean_ids", "perturbed_ids")})


def test_other_tokens_have_another_digest_and_the_same_have_the_same():
    """The same tokens, divided otherwise between the two prompts, are another pair."""
    digests = digests_of(of(ROWS))
    assert (digests.dtype, digests.shape, len(set(digests))) == (np.uint64, (len(ROWS),), len(ROWS))
    order = [4, 0, 2, 2]
    np.testing.assert_array_equal(digests_of(of(ROWS).select(order)), digests[order])
    np.testing.assert_array_equal(digests_of(of(ROWS).select(range(1, 4))), digests[1:4])
    np.testing.assert_array_equal(digests_of(of(ROWS).with_format("torch")), digests)


def test_many_rows():
    """They are read in batches."""
    rng = np.random.default_rng(0)
    rows = [{side: rng.integers(0, 9, rng.integers(1, 5)).tolist() for side in ROWS[0]} for _ in range(10_007)]
    digests = digests_of(of(rows))
    keys = [(tuple(row["clean_ids"]), tuple(row["perturbed_ids"])) for row in rows]
    assert len(set(zip(keys, digests.tolist(), strict=True))) == len(set(keys)) == len(set(digests.tolist()))


def test_rows_that_were_trained_on_are_counted(tmp_path):
    write_digests(tmp_path, digests_of(of(ROWS[:2])))
    assert among([ROWS[1], ROWS[1], ROWS[3]], read_digests(tmp_path)) == 2
    assert among([], read_digests(tmp_path)) == 0


def saved(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        *(None, b"", b"no array", b"\x93NUMPY", saved(np.array(["a"], dtype=object)), saved(np.array([0.5, 2.0]))),
        saved(np.zeros(10, dtype=np.uint64)).replace(b"(10,), }          ", b"(10000000000000,)}"),
    ],
)
def test_without_a_file_that_can_be_read_nothing_is_known(tmp_path, content):
    if content is not None:
        (tmp_path / TRAINED_PAIRS).write_bytes(content)
    assert len(read_digests(tmp_path)) == 0
