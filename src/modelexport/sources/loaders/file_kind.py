"""Recognize the file that a reference names by its content, and explain why most kinds are not models.

Nothing is unpickled or run.
"""

from __future__ import annotations

import zipfile
from pathlib import Path, PurePosixPath

from modelexport.errors import ModelSourceError

_SAFETENSORS = (
    "save the weights with safetensors.torch.save_model and write a factory that builds the model and loads them, "
    "or give a HuggingFace folder with config.json and model.safetensors"
)
_PICKLE_SUFFIXES = frozenset({".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle"})
_LARGEST_HEADER = 100 << 20


def is_exported_program(path: Path) -> bool:
    """Whether the file looks like one of `torch.export.save`."""
    members = _archive_members(path)
    return "archive_format" in members or (path.suffix == ".pt2" and not _is_torchscript(members))


def refuse_file(path: Path) -> ModelSourceError:
    """The error for a file that is not an exported program: what it is, and what to give instead."""
    members, start = _archive_members(path), _start(path)
    if _is_torchscript(members):
        what = (
            "a TorchScript file (torch.jit.save): its module classes and their hierarchy are gone; give the Python "
            "model that it was exported from as package.module:factory, or a .pt2 file of torch.export.save"
        )
    elif "data.pkl" in members or _is_pickle(start) or (path.suffix.lower() in _PICKLE_SUFFIXES):
        what = f"a pickle checkpoint, and loading one can run code: it was not opened; {_SAFETENSORS}"
    elif path.suffix == ".safetensors" or _is_safetensors(start):
        return ModelSourceError(
            f"{path} has weights but no model: give its HuggingFace folder, "
            "or package.module:factory of a function that builds the model and loads them"
        )
    elif path.suffix == ".onnx":
        what = (
            "already an ONNX file, and MODEL is the PyTorch model to export: modelexport tag adds a hierarchy to an "
            "ONNX file"
        )
    elif path.suffix == ".py":
        what = f"a Python file: name a factory in it, as {path}:factory"
    else:
        what = (
            "not a supported model file: give a .pt2 file of torch.export.save, a HuggingFace folder, or "
            "package.module:factory"
        )
    return ModelSourceError(f"{path} is {what}")


def _is_torchscript(members: frozenset[str]) -> bool:
    return "constants.pkl" in members or "code" in members


def _archive_members(path: Path) -> frozenset[str]:
    """The names in a torch archive, below its one folder: `data.pkl`, `code`, `constants.pkl`, ..."""
    try:
        if not zipfile.is_zipfile(path):
            return frozenset()
        with zipfile.ZipFile(path) as archive:
            parts = (PurePosixPath(name).parts for name in archive.namelist())
            return frozenset(name[1] for name in parts if len(name) > 1)
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError):
        return frozenset()


def _start(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(16)
    except OSError as error:
        raise ModelSourceError(f"{path} cannot be read: {error.strerror or error}") from error


def _is_pickle(start: bytes) -> bool:
    """A pickle of protocol 2 or later has a header; older ones are recognized by the file extension only."""
    return len(start) > 1 and start[0] == 0x80 and 2 <= start[1] <= 5


def _is_safetensors(start: bytes) -> bool:
    """A length in eight bytes, then a JSON object of that length."""
    return len(start) > 8 and start[8:9] == b"{" and 2 <= int.from_bytes(start[:8], "little") <= _LARGEST_HEADER
