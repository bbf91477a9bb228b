"""Parse options of the command line and of files of jobs, without torch."""

from __future__ import annotations

import dataclasses
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelexport.errors import InputError

_SHAPE = re.compile(r"(?:(?P<name>[^=]+)=)?(?P<shape>\d{1,18}(?:x\d{1,18})*|scalar)(?::(?P<dtype>\w+))?")
_AXIS = re.compile(r"(?P<name>[^:=]+):(?P<axis>-?\d{1,9})=(?P<dimension>(?:[1-9]\d{0,8}\*)?[^\W\d]\w*)")
_AUTO = "auto"
# A compressed file may expand to this size, or to this many times its own.
_FREE_BYTES = 256 * 2**20
_MOST_EXPANSION = 20


@dataclasses.dataclass(frozen=True)
class GivenShape:
    """A parsed ``--input-shape`` option.

    Attributes:
        option: The option's own text, for messages.
        name: The input.
        shape: Its shape.
        dtype: Its element type, ``float32`` by default.
    """

    option: str
    name: str
    shape: tuple[int, ...]
    dtype: str


def read_shape(text: str, inputs: Sequence[str] = ()) -> GivenShape:
    """The parts of ``name=1x16`` or ``name=1x16:int64``.

    Args:
        text: The text.
        inputs: The inputs that a shape without a name may be that of: it needs a name unless there is one.

    Raises:
        InputError: The text is not a shape, or has no name and needs one.
    """
    match = _SHAPE.fullmatch(text)
    option = f"--input-shape {text!r}"
    if match is None:
        raise InputError(f"{option} cannot be read: write name=1x16 or name=1x16:int64")
    if match["name"] is None and len(inputs) != 1:
        known = f"; the inputs are {', '.join(inputs)}" if inputs else ""
        raise InputError(f"{option} names no input: write name={text}{known}")
    shape = () if match["shape"] == "scalar" else tuple(int(size) for size in match["shape"].split("x"))
    return GivenShape(option, match["name"] or inputs[0], shape, match["dtype"] or "float32")


def existing_path(reference: str) -> Path | None:
    """The file or folder that a reference names; None if it does not exist or is not a valid path."""
    try:
        path = Path(reference).expanduser()
        return path if reference.strip() and path.exists() else None
    except (OSError, ValueError, RuntimeError):
        # Too long, with an invalid character, or in the home folder of an unknown user.
        return None


def read_arrays(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The arrays of an ``.npz`` file by name.

    Raises:
        InputError: The file cannot be read as ``.npz``.
    """
    try:
        _check_expansion(path)
        # Opened here: numpy leaves a damaged file open.
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if isinstance(arrays, np.lib.npyio.NpzFile):
                with arrays:
                    return {name: arrays[name] for name in arrays.files}
    except Exception as error:
        raise InputError(f"{path} cannot be read as an .npz file of example inputs: {error}") from error
    raise InputError(f"{path} contains a single array: save the inputs by name with numpy.savez")


def _check_expansion(path: Path) -> None:
    """Refuse a small file that expands to gigabytes."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            expanded = sum(entry.file_size for entry in archive.infolist())
        if expanded > max(_FREE_BYTES, _MOST_EXPANSION * path.stat().st_size):
            raise ValueError(f"it expands to {expanded:,} bytes: save it with numpy.savez, without compression")


def read_dynamic(texts: Sequence[str] | None) -> str | dict[str, dict[int, str]] | None:
    """The value of ``--dynamic`` for `export_model`; None if it is not given.

    Raises:
        InputError: A value cannot be parsed, an axis is given twice, or axes are given together with ``auto``.
    """
    if not texts:
        return None
    if _AUTO in texts:
        if len(texts) > 1:
            raise InputError("--dynamic auto determines the axes: give no others")
        return _AUTO
    found: dict[str, dict[int, str]] = {}
    for text in texts:
        match = _AXIS.fullmatch(text)
        if match is None:
            raise InputError(
                f"--dynamic {text!r} cannot be read: write auto, or name:axis=dimension, as in input_ids:0=batch"
            )
        axes = found.setdefault(match["name"], {})
        if int(match["axis"]) in axes:
            raise InputError(f"--dynamic {text!r}: axis {match['axis']} of {match['name']} is given twice")
        axes[int(match["axis"])] = match["dimension"]
    return found


def read_exceptions(text: str | None) -> list[str] | str | None:
    """The torch.nn exceptions as a list of names, or one of the words ``all`` and ``none``."""
    if text is None or text in ("all", "none"):
        return text
    return [name.strip() for name in text.split(",") if name.strip()]
