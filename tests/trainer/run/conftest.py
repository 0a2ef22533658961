import time

import pytest

from tests.helpers.interrupted_run import STEPS, make_trainer
from tests.helpers.runs import weights


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """Uninterrupted runs by method: folder, weights at the end, seconds that it took."""
    made = {}

    def run(method):
        if method not in made:
            directory, start = tmp_path_factory.mktemp(method), time.monotonic()
            trainer = make_trainer(method, directory, save_total_limit=None)
            trainer.train()
            assert trainer.state.global_step == STEPS
            made[method] = directory, weights(trainer.model), time.monotonic() - start
        return made[method]

    return run
