"""
Makes the weaker checkpoint whose answers `recipes/smollm2-135m-instruct/stale_sft.yaml` trains on.

```bash
python -m tests.reproduce.weaker_checkpoint outputs/smollm2-weaker
```
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from trl_consistency.errors import ends_with_message
from trl_consistency.files import whole_folder
from trl_consistency.models.embedded_models import resolve_model


BITS, GROUP = 4, 192
WEIGHTS = "model.safetensors"


def rounded(weight: torch.Tensor, bits: int = BITS, group: int = GROUP) -> torch.Tensor:
    """
    Rounds a matrix to the nearest of `2**bits` values, evenly spaced between the lowest and the highest weight of each
    `group` in a row.
    """
    groups = weight.float().reshape(-1, group)
    lowest, highest = groups.aminmax(dim=1, keepdim=True)
    step = ((highest - lowest) / (2**bits - 1)).clamp(min=torch.finfo(torch.float32).tiny)
    return (lowest + step * ((groups - lowest) / step).round()).reshape(weight.shape).to(weight.dtype)


def write_weaker_checkpoint(
    folder: str | Path, source: str = "embedded:smollm2", bits: int = BITS, group: int = GROUP
) -> Path:
    """
    Writes a checkpoint whose linear weights are rounded to fewer bits, and all else is unchanged: the same files each
    time, without training or chance. Does nothing if the folder exists.

    Args:
        folder (`str` or [`~pathlib.Path`]):
            Folder for the checkpoint.
        source (`str`, *optional*, defaults to `"embedded:smollm2"`):
            Model to weaken: a folder, or an embedded model.
        bits (`int`, *optional*, defaults to `4`):
            Bits of a weight.
        group (`int`, *optional*, defaults to `192`):
            Number of weights that share a range.

    Returns:
        [`~pathlib.Path`]: The folder.
    """
    folder, whole = Path(folder), Path(resolve_model(source))
    if folder.is_dir():
        return folder
    weights = load_file(whole / WEIGHTS)
    weights = {
        name: rounded(weight, bits, group) if weight.dim() == 2 and "embed" not in name else weight
        for name, weight in weights.items()
    }
    with whole_folder(folder) as unfinished:
        for file in whole.iterdir():
            if file.name not in (WEIGHTS, "README.md"):
                shutil.copy(file, unfinished)
        save_file(weights, unfinished / WEIGHTS, metadata={"format": "pt"})
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", help="Folder to write. Nothing is done if it exists.")
    with ends_with_message():
        print(write_weaker_checkpoint(parser.parse_args().folder))
