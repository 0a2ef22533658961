import pytest

from tests.helpers.publishing import OUTCOMES, RESULTS, save_adapter
from trl_consistency.publishing import write_results


@pytest.fixture(scope="session")
def saved_adapter(tmp_path_factory):
    return save_adapter(tmp_path_factory.mktemp("saved") / "bct")


@pytest.fixture
def adapter_dir(saved_adapter, tmp_path):
    """One with results, and with targets, arguments and tables that are nobody else's business."""
    folder = tmp_path / "outputs" / "bct"
    folder.mkdir(parents=True)
    for file in saved_adapter.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for name in (
        "training_args.bin",
        "optimizer.pt",
        "pairs.jsonl",
        "_targets/abc/model.json",
        "completions/a.parquet",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("mine")
    write_results(folder, RESULTS, "Measured here.", OUTCOMES, ["Right answers fell."])
    return folder
