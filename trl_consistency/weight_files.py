"""What the headers of safetensors files say of the weights in them."""

from pathlib import Path

from safetensors import SafetensorError, safe_open

from .errors import ConsistencyError, one_line


def stored_in(file: Path) -> dict[str, tuple[str, list[int]]]:
    """The types and shapes of the tensors in a safetensors file by name; only its header is read."""
    if file.exists() and not file.is_file():  # a pipe would be waited for
        raise ConsistencyError(f"{file} is a folder, a pipe or a device, and not a file. Download or copy it again.")
    try:
        with safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118
            return {name: (of.get_dtype(), of.get_shape()) for name, of in slices.items()}
    except (OSError, SafetensorError) as error:
        raise ConsistencyError(
            f"{file} is cut short or damaged ({one_line(error)}). Download or copy it again."
        ) from None


def shapes_in(file: Path) -> dict[str, list[int]]:
    """The shapes of the tensors in a safetensors file by name; only its header is read."""
    return {name: shape for name, (_, shape) in stored_in(file).items()}
