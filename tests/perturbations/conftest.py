import pytest

from trl_consistency.perturbations import PERTURBATIONS


@pytest.fixture
def own_registry():
    """What a test registers is gone after it."""
    before = dict(PERTURBATIONS)
    yield PERTURBATIONS
    PERTURBATIONS.clear()
    PERTURBATIONS.update(before)
