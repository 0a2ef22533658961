import pytest

from tests.helpers.models import make_model


@pytest.fixture(scope="module")
def model():
    return make_model()
