"""Load a `.pt2` file of `torch.export.save` as a model, checked first, so that an untrusted file cannot run code.

`torch.export.load` unpickles example inputs and constants, loads shared libraries, evaluates symbolic sizes as Python,
calls whatever function of torch a node names, and writes names into Python code that it compiles. Two rules prevent
this. The program's description is decoded by torch's own schema, and each text in it must satisfy the rule of its
field. And torch never opens the file itself: it opens an archive written here from what was checked, because two
readers of one zip file can see different members in it.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import re
import shutil
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from modelexport.capture import model_of_program
from modelexport.display import in_one_line
from modelexport.errors import ModelSourceError
from modelexport.sources.loaders.pt2.text_rules import RefusedError, check_name, check_text, decode_checked
from modelexport.sources.loaders.sourced_model import SourcedModel
from modelexport.torch_support import TORCH_LOCK
from modelexport.torch_support.private import leaves_with_keys
from modelexport.torch_support.private_export import program_schema

# Python keeps an archive up to this size in memory; a larger one goes to a temporary file.
_LARGEST_IN_MEMORY = 64 << 20
_MODEL, _EXAMPLES = "models/model.json", "data/sample_inputs/model.pt"
_WEIGHTS, _CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
_COPIED = re.compile(r"archive_(format|version)|byteorder|\.data/version|data/(weights/weight|constants/tensor)_\d+")
_MEMBERS = re.compile(
    rf"{_COPIED.pattern}|version|\.format_version|\.data/[\w-]+|extra/[^/]+|models/model\.json"
    r"|data/sample_inputs/model\.pt|data/(weights/model_weights|constants/model_constants)_config\.json"
)
# What decoding raises for content of the wrong shape.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, NotImplementedError)


@contextlib.contextmanager
def checked_program(path: Path) -> Iterator[tuple[IO[bytes], Any]]:
    """Check an exported program and write what was checked to a new archive, which exists within this context.

    Returns the archive, without pickled members, and the example inputs. The file is read once: changing it afterwards
    has no effect.
    """
    with tempfile.SpooledTemporaryFile(max_size=_LARGEST_IN_MEMORY) as target:
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as source, zipfile.ZipFile(target, "w") as archive:
                examples = _copy_checked(source, file.seek(0, io.SEEK_END), archive)
        except RefusedError as error:
            raise ModelSourceError(
                f"{path} was not loaded: {error}. Loading it could run code that the file contains; export the "
                "original model instead, given as package.module:factory"
            ) from error
        except (OSError, zipfile.BadZipFile, *_UNREADABLE) as error:
            raise ModelSourceError(
                f"{path} is not an exported program that can be read: {in_one_line(error)}; save it again with "
                "torch.export.save"
            ) from error
        target.seek(0)
        yield target, examples


def _copy_checked(source: zipfile.ZipFile, file_size: int, target: zipfile.ZipFile) -> Any:
    """Write the checked members to the target; returns the example inputs."""
    schema = program_schema()
    members = _members(source, file_size)

    def read(name: str) -> bytes:
        if name not in members:
            raise ValueError(f"it has no {name}")
        return source.read(members[name])

    def write(name: str, content: bytes) -> None:
        target.writestr(f"program/{name}", content)

    for table in (_WEIGHTS, _CONSTANTS):
        payloads = decode_checked(schema.PayloadConfig, json.loads(read(table)))
        _check_payloads(payloads["config"], table.rpartition("/")[0], members)
        write(table, json.dumps(payloads).encode())
    examples = _load_examples(read(_EXAMPLES))
    # Without content torch has nothing to unpickle.
    write(_EXAMPLES, b"")
    write(_MODEL, json.dumps(decode_checked(schema.ExportedProgram, json.loads(read(_MODEL)))).encode())
    for name, info in members.items():
        if _COPIED.fullmatch(name):
            large = info.file_size >= zipfile.ZIP64_LIMIT // 2
            with source.open(info) as content, target.open(f"program/{name}", "w", force_zip64=large) as copy:
                shutil.copyfileobj(content, copy, 1 << 20)
    return examples


def _members(source: zipfile.ZipFile, file_size: int) -> Mapping[str, zipfile.ZipInfo]:
    """The members by their names below the one folder of a torch archive."""
    infos = source.infolist()
    members = {info.filename.partition("/")[2]: info for info in infos}
    if len({info.filename.partition("/")[0] for info in infos}) != 1:
        raise ValueError("it is not a torch archive")
    if len(members) != len(infos):
        raise ValueError("it has several members of the same name")
    if any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in infos):
        raise ValueError("its members are compressed or encrypted, which torch never does")
    if sum(info.file_size for info in infos) > file_size:
        raise ValueError("its members overlap")
    if "archive_format" not in members:
        raise ValueError("it is an archive, but not one of torch.export.save")
    unknown = [name for name in members if not _MEMBERS.fullmatch(name)]
    if unknown:
        raise RefusedError(f"it contains {unknown[0]!r}, which torch.export.save does not write for a program")
    return members


def _check_payloads(payloads: Mapping[str, Any], folder: str, members: Mapping[str, zipfile.ZipInfo]) -> None:
    for name, payload in payloads.items():
        member = f"{folder}/{payload['path_name']}"
        if payload["use_pickle"] or member not in members or not _COPIED.fullmatch(member):
            raise RefusedError(f"{name!r} in {folder} is a pickled object")
        sizes = [size["as_int"] for size in payload["tensor_meta"]["sizes"]]
        # torch would allocate a tensor of the stated size, however large.
        if members[member].file_size == 0 and math.prod(sizes):
            raise ValueError(f"{name!r} in {folder} has no content")


def _load_examples(content: bytes) -> Any:
    if not content:
        return None
    try:
        # torch.export.load falls back to unrestricted unpickling where this fails.
        examples = torch.load(io.BytesIO(content), weights_only=True)
    except Exception as error:
        raise RefusedError("its example inputs are pickled objects, not tensors") from error
    args, kwargs = examples
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        raise TypeError("its example inputs are not positional and keyword arguments")
    for name in kwargs:
        check_name(name)
    # torch writes the path of each input into the code that checks the inputs.
    for keys, _ in leaves_with_keys(examples):
        for key in keys:
            if not isinstance(key, int):
                check_text(key)
    return args, kwargs


def load_exported_program(path: Path) -> SourcedModel:
    """Load the program in a file as a model with the modules that its nodes name."""
    with checked_program(path) as (archive, examples):
        try:
            with TORCH_LOCK, warnings.catch_warnings(), _quiet("torch.export", "torch._export"):
                warnings.simplefilter("ignore")
                program = torch.export.load(archive)
                program.example_inputs = examples
                model = model_of_program(program)
        except Exception as error:
            raise ModelSourceError(
                f"{path}: torch {torch.__version__} cannot load this exported program: {in_one_line(error):.300}; save "
                "it again with this release of torch, and import the packages whose operators or classes it uses"
            ) from error
    if not examples:
        return SourcedModel(model)
    args, kwargs = examples
    # A dict after the positional inputs has the keyword inputs.
    return SourcedModel(model, (*args, dict(kwargs)) if args else dict(kwargs))


@contextlib.contextmanager
def _quiet(*names: str) -> Any:
    """Silence loggers: torch logs a full traceback of a file that it cannot load, and then raises."""
    loggers = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    try:
        for logger, _ in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in loggers:
            logger.setLevel(level)
