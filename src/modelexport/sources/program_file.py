"""What a saved exported program must not do before it is loaded: run code.

`torch.export.load` unpickles example inputs, constants and weights with full pickle where it finds them so, loads
shared libraries, evaluates the text of symbolic sizes, calls whatever function of torch a node names, and writes names
into Python code that it compiles. A file from a stranger is data: what `torch.export.save` writes for a program of
torch's operators passes here, and anything else is refused.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import math
import operator
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from modelexport.errors import ModelExportError, ModelSourceError

# Where a program keeps what it requires of its inputs, as text that torch compiles when it runs it.
GUARDS = "guards_code"
# Stack traces and the like, which torch only carries along.
_CARRIED = "metadata"
_END_OF_ARCHIVE = b"PK\x05\x06"
_END_SIZE = 22
_MODEL, _EXAMPLES = "models/model.json", "data/sample_inputs/model.pt"
_WEIGHTS, _CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|version|\.format_version|\.data/[\w-]+|extra/[^/]+|models/model\.json"
    r"|data/sample_inputs/model\.pt|data/(weights/weight|constants/tensor)_\d+"
    r"|data/(weights/model_weights|constants/model_constants)_config\.json"
)
# What cannot be part of a name in Python code: torch writes names into code between quotes, or as they are.
_UNSAFE = re.compile(r"[\"'\\\x00-\x1f\x7f]")
_LARGEST_EXPRESSION = 4000
_LARGEST_POWER = 64
_SYMBOL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?(e[-+]?[0-9]{1,3})?", re.IGNORECASE)
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
# What sympy writes of sizes; torch's own functions of sizes come to these.
_EXPRESSIONS = frozenset(
    {
        *("Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Abs", "floor", "ceiling"),
        *("Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan"),
        *("And", "Or", "Not", "Piecewise", "ExprCondPair"),
    }
)
_WORDS = frozenset({"true", "false", "oo", "int_oo", "nan"})
_SETTINGS = frozenset({"positive", "integer", "negative", "nonnegative", "nonzero", "real", "finite", "precision"})


def check_program_file(path: Path) -> None:
    """Refuse a file that is no exported program, and one that would run code when it is loaded.

    Raises:
        ModelSourceError: It is not, or it would; says why.
    """
    try:
        with _opened(path) as archive:
            _check_payloads(archive, _WEIGHTS, "weight")
            _check_payloads(archive, _CONSTANTS, "constant")
            _check_examples(archive)
            _check_description(json.loads(archive.read(_MODEL)))
    except _RefusedError as error:
        raise ModelSourceError(
            f"{path} was not loaded: {error}. Loading it would run code that the file brings along, or that nobody can "
            "vouch for; give the model that it was made of as package.module:factory"
        ) from error
    except (OSError, zipfile.BadZipFile, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelSourceError(
            f"{path} is no exported program that can be read: {reason}; save it anew with torch.export.save"
        ) from error


class _RefusedError(ModelExportError):
    """Something that runs code."""


class _Archive:
    """The members of a file of torch, all of which lie in one folder of it."""

    def __init__(self, archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> None:
        self._archive, self.members = archive, members

    def read(self, name: str) -> bytes:
        if name not in self.members:
            raise ValueError(f"it has no {name}")
        return self._archive.read(self.members[name])


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Archive]:
    """The archive, provided that it is one that every reader understands in the same way."""
    with path.open("rb") as file:
        if file.seek(0, io.SEEK_END) < _END_SIZE:
            raise ValueError("it is too short for an archive")
        file.seek(-_END_SIZE, io.SEEK_END)
        if file.read(4) != _END_OF_ARCHIVE:
            raise ValueError("it is no archive of torch")
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            folders = {info.filename.partition("/")[0] for info in infos}
            members = {info.filename.partition("/")[2]: info for info in infos}
            if len(folders) != 1 or not infos or min(info.header_offset for info in infos):
                raise ValueError("it is no archive of torch")
            twice = [name for name, count in Counter(name.lower() for name in members).items() if count > 1]
            if len(members) != len(infos) or twice:
                raise ValueError("it has members of the same name")
            if any(info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 for info in infos):
                raise ValueError("its members are compressed or encrypted, which torch's never are")
            if "archive_format" not in members:
                raise ValueError("it is an archive, but not one of torch.export.save")
            strange = [name for name in members if not _MEMBERS.fullmatch(name)]
            if strange:
                raise _RefusedError(f"it holds {strange[0]!r}, which torch.export.save does not write for a program")
            yield _Archive(archive, members)


def _check_payloads(archive: _Archive, table: str, kind: str) -> None:
    folder = table.rpartition("/")[0]
    for name, payload in json.loads(archive.read(table))["config"].items():
        if _UNSAFE.search(name):
            raise _RefusedError(f"the {kind} {name!r} has a name that is no name")
        member = f"{folder}/{payload['path_name']}"
        if payload["use_pickle"] or member not in archive.members or not _MEMBERS.fullmatch(member):
            raise _RefusedError(f"the {kind} {name!r} is a pickled object")
        sizes = [size["as_int"] for size in payload["tensor_meta"]["sizes"]]
        # For these torch makes a tensor of the size that is said, however large.
        if archive.members[member].file_size == 0 and math.prod(sizes):
            raise ValueError(f"the {kind} {name!r} has no content")


def _check_examples(archive: _Archive) -> None:
    content = archive.read(_EXAMPLES)
    if not content:
        return
    try:
        torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    except Exception as error:
        raise _RefusedError("its example inputs are pickled objects, not tensors") from error


def _check_description(description: Any) -> None:
    """Every entry by the rule for its name; what has none must not hold what ends a name in Python.

    A tensor of the program may be called as one of these entries is, so that a rule is for values of its kind alone.
    """
    waiting = [description]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for key, inner in value.items():
                _check_text(key)
                if (
                    key == _CARRIED
                    and isinstance(inner, dict)
                    and all(isinstance(text, str) for text in inner.values())
                ):
                    continue
                if key == GUARDS and isinstance(inner, list) and all(isinstance(text, str) for text in inner):
                    continue
                if key == "as_custom_obj" and inner is not None:
                    raise _RefusedError("it is made with objects of classes that are not torch's")
                if key in _RULES and isinstance(inner, str | list):
                    _RULES[key](inner)
                else:
                    waiting.append(inner)
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, str):
            _check_text(value)


def _are_texts(values: Iterable[object]) -> bool:
    return all(isinstance(value, str) for value in values)


def _check_text(text: str) -> None:
    if _UNSAFE.search(text):
        raise _RefusedError(f"it says {text[:60]!r}, which ends a name in Python code")


def _check_arguments(names: Any) -> None:
    for name in names:
        if not isinstance(name, str) or not name.isidentifier():
            raise _RefusedError(f"an argument of the model is called {str(name)[:60]!r}")


def _check_target(text: Any) -> None:
    """A node may call torch's operators, and Python's on sizes."""
    found: Any = {"torch": torch, "_operator": operator, "math": math}.get(str(text).partition(".")[0])
    for part in str(text).split(".")[1:]:
        found = getattr(found, part, None)
    if isinstance(found, torch._ops.OpOverload):
        # The one kind of operator that opens files takes the name of one.
        if not any(str(argument.type) == "str" and "file" in argument.name for argument in found._schema.arguments):
            return
    elif isinstance(found, torch._ops.HigherOrderOperator) or _is_of_sizes(found):
        return
    raise _RefusedError(f"a node of it calls {str(text)[:60]!r}, which is no operator of torch that is installed here")


def _is_of_sizes(found: object) -> bool:
    from torch._export.serde.serialize import _SYM_OPS

    own = (
        getattr(found, "__module__", None) == "torch" and str(getattr(found, "__name__", "")).lstrip("_")[:4] == "sym_"
    )
    return found is operator.getitem or own or (callable(found) and any(found is known for known in _SYM_OPS))


def _check_structure(text: Any) -> None:
    """How inputs and results are nested: containers with names, nothing that is made by what the file says."""
    _, structure = json.loads(text)
    waiting = [structure]
    while waiting:
        node = waiting.pop()
        waiting.extend(node["children_spec"])
        context = node["context"]
        with contextlib.suppress(ValueError, TypeError):
            context = json.loads(context)
        parts = [context]
        while parts:
            part = parts.pop()
            if isinstance(part, list):
                parts.extend(part)
            elif isinstance(part, str | int | None):
                _check_text(str(part))
            else:
                raise _RefusedError(f"its inputs or results hold a {node['type']}, which the file says how to make")


def _check_expression(text: Any) -> None:
    """A size as sympy writes it; it is evaluated as Python."""
    if not isinstance(text, str) or len(text) > _LARGEST_EXPRESSION or not _is_size(ast.parse(text, mode="eval").body):
        raise _RefusedError(f"the size {str(text)[:60]!r} is more than a calculation")


def _is_size(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_size(node.operand)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float)
    if isinstance(node, ast.Name):
        return node.id in _WORDS or re.fullmatch(r"[su]\d+", node.id) is not None
    if isinstance(node, ast.Tuple):
        return all(_is_size(part) for part in node.elts)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    name, first = node.func.id, node.args[0] if node.args else None
    settings = all(word.arg in _SETTINGS and isinstance(word.value, ast.Constant) for word in node.keywords)
    if name in ("Symbol", "Float") and isinstance(first, ast.Constant) and isinstance(first.value, str):
        pattern = _SYMBOL if name == "Symbol" else _NUMBER
        return settings and len(node.args) == 1 and pattern.fullmatch(first.value) is not None
    known = name in _EXPRESSIONS or _is_function_of_sizes(name)
    return known and settings and all(map(_is_size, node.args)) and (name not in _POWERS or _is_small_power(node))


def _is_function_of_sizes(name: str) -> bool:
    import sympy  # type: ignore[import-untyped]
    from torch.utils._sympy import functions

    found = getattr(functions, name, None)
    return isinstance(found, type) and issubclass(found, sympy.Basic) and found.__module__ == functions.__name__


def _is_small_power(node: ast.Call) -> bool:
    """Whether it can be worked out at once: of a symbol, to a small number."""
    if len(node.args) != 2:
        return False
    of_symbol = any(isinstance(part, ast.Name) and part.id == "Symbol" for part in ast.walk(node.args[0]))
    numbers = [part.value for part in ast.walk(node.args[1]) if isinstance(part, ast.Constant)]
    return of_symbol and all(isinstance(n, int | float) and abs(n) <= _LARGEST_POWER for n in numbers)


_RULES: dict[str, Callable[[Any], None]] = {
    "target": _check_target,
    "expr_str": _check_expression,
    "in_spec": _check_structure,
    "out_spec": _check_structure,
    "forward_arg_names": _check_arguments,
}
