"""A model that several files of this folder run."""

import pytest

from tests.helpers.architectures import make


@pytest.fixture(scope="module")
def llama():
    return make("llama", "sdpa")
