"""Example inputs from the command line: arrays in a file, or shapes to fill."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from modelexport.errors import InputError

_SHAPE = re.compile(r"(?P<name>[^=]+)=(?P<shape>\d+(?:x\d+)*|scalar)(?::(?P<dtype>\w+))?")
_SEED = 0


def read_arrays(path: Path) -> dict[str, torch.Tensor]:
    """The arrays of an ``.npz`` file as tensors, by the names of the forward arguments.

    Raises:
        InputError: It is no such file.
    """
    try:
        arrays = np.load(path, allow_pickle=False)
        if isinstance(arrays, np.lib.npyio.NpzFile):
            with arrays:
                return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    except Exception as error:
        raise InputError(f"{path} cannot be read as an .npz file of example inputs: {error}") from error
    raise InputError(f"{path} holds a single array: save the inputs by name with numpy.savez")


def fill_shapes(specifications: list[str]) -> dict[str, torch.Tensor]:
    """A tensor for each ``name=1x16`` or ``name=1x16:int64``: numbers for floats, ones for the rest.

    Raises:
        InputError: A specification cannot be read.
    """
    generator = torch.Generator().manual_seed(_SEED)
    return dict(_fill(text, generator) for text in specifications)


def _fill(text: str, generator: torch.Generator) -> tuple[str, torch.Tensor]:
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise InputError(f"--input-shape {text!r} cannot be read: write name=1x16 or name=1x16:int64")
    shape = [] if match["shape"] == "scalar" else [int(size) for size in match["shape"].split("x")]
    dtype: Any = getattr(torch, match["dtype"] or "float32", None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"--input-shape {text!r}: {match['dtype']!r} is no torch type, such as float32 or int64")
    try:
        if dtype.is_floating_point:
            return match["name"], torch.randn(shape, generator=generator).to(dtype)
        return match["name"], torch.ones(shape, dtype=dtype)
    except (RuntimeError, NotImplementedError, MemoryError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"--input-shape {text!r}: torch cannot make such a tensor: {reason}") from error
