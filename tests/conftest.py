"""Settings of every test process, and fixtures of tiny models and tokenizers."""

import gc
import os
import signal
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Before torch and the hub client are imported: one thread a process, no network, no usage pings.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("CI", "true")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# What is imported stays: looking for garbage meanwhile finds none.
gc.disable()

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in what a shell starts in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure(config: pytest.Config) -> None:
    """The tests are about CPUs, and hide GPUs, except for those that need one."""
    wanted = config.getoption("markexpr").replace("not gpu", "").replace("not vllm", "")
    if "gpu" not in wanted and "vllm" not in wanted:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m real`, `-m vllm` or `-m gpu`, files without that mark are not imported: importing all takes longer than some of these runs."""
    mark = config.getoption("markexpr").split(" ")[0]
    is_file = collection_path.suffix == ".py" and collection_path.name != "conftest.py"
    if mark in ("real", "vllm", "gpu") and is_file and f"mark.{mark}" not in collection_path.read_text():
        return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    The files with the longest tests come first: at the end, one process would run them while the other is idle. What needs
    the organism is long, since it is trained first.
    """
    for item in items:
        if "organism_dir" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.long)
    items.sort(key=lambda item: item.path.name not in ("test_kills.py", "test_docs.py"))


def pytest_collection_finish() -> None:
    """Every training collects garbage, among all that exists: modules and tests, which stay, are left out from here on."""
    import torch  # not above: with several processes pytest's own one runs no test
    from accelerate.utils import imports

    torch.set_num_threads(1)
    # Each training asks several times whether PEFT is installed, and accelerate reads the answer from a file each time.
    imports._is_package_available = cache(imports._is_package_available)
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def warned_anew() -> None:
    """What is logged once in a process is logged once in each test, whichever ran before it."""
    if (logging := sys.modules.get("accelerate.logging")) is not None:
        logging.MultiProcessAdapter.warning_once.cache_clear()


@pytest.fixture(scope="session")
def tokenizer() -> "PreTrainedTokenizerFast":
    from tests.helpers.models import make_tokenizer

    return make_tokenizer()


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory, tokenizer: "PreTrainedTokenizerFast") -> Path:
    """A saved tiny model with its tokenizer, for what loads by path."""
    from tests.helpers.models import make_model

    directory = tmp_path_factory.mktemp("model")
    make_model().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def organism_dir() -> Path:
    """The embedded model organism; trained once (about two minutes) and cached."""
    from trl_consistency.organism import build_organism

    return build_organism(progress=False)


@pytest.fixture(scope="session")
def real():
    """The rows of the real data, and tokenizers trained on them."""
    from tests.helpers.prompts import load_rows, make_real

    rows = load_rows()
    if not rows:
        pytest.skip("the real pairs are not beside this checkout")
    return make_real(rows)


@pytest.fixture
def own_registry():
    """The registry of perturbations; what a test registers is gone after it."""
    from trl_consistency.perturbations import PERTURBATIONS

    before = dict(PERTURBATIONS)
    yield PERTURBATIONS
    PERTURBATIONS.clear()
    PERTURBATIONS.update(before)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):
    """A Hub on the loopback interface, in the place of the real one."""
    from tests.helpers.loopback_hub import LoopbackHub

    with LoopbackHub().running() as server:
        server.stand_in(monkeypatch)
        yield server
