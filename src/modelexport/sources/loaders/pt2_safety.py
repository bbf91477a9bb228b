"""Check a saved exported program (`.pt2`) before torch loads it, so that an untrusted file cannot run code.

`torch.export.load` unpickles example inputs and constants, loads shared libraries, evaluates symbolic sizes as Python,
calls whatever function of torch a node names, and writes names into Python code that it compiles. Two rules prevent
this. The program's description is decoded by torch's own schema, and each text in it must satisfy the rule of its
field. And torch never opens the file itself: it opens an archive written here from what was checked, because two
readers of one zip file can see different members in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import json
import keyword
import math
import operator
import re
import shutil
import tempfile
import types
import typing
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch

from modelexport.errors import ModelExportError, ModelSourceError
from modelexport.sources.loaders.size_expressions import is_size_expression, is_size_symbol
from modelexport.torch_support.private import is_operator_overload, leaves_with_keys, schema_of
from modelexport.torch_support.private_export import is_schema_union, program_schema, size_operators

# Python keeps an archive up to this size in memory; a larger one goes to a temporary file.
_LARGEST_IN_MEMORY = 64 << 20
_MODEL, _EXAMPLES = "models/model.json", "data/sample_inputs/model.pt"
_WEIGHTS, _CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"
_COPIED = re.compile(r"archive_(format|version)|byteorder|\.data/version|data/(weights/weight|constants/tensor)_\d+")
_MEMBERS = re.compile(
    rf"{_COPIED.pattern}|version|\.format_version|\.data/[\w-]+|extra/[^/]+|models/model\.json"
    r"|data/sample_inputs/model\.pt|data/(weights/model_weights|constants/model_constants)_config\.json"
)
# Characters that end or escape a string literal: torch puts dictionary keys and attribute names between quotes.
_QUOTING = re.compile(r"[\"'\\`]")
_NONFINITE = frozenset({"Infinity", "-Infinity", "NaN"})
# What torch may restore on a node. It resolves other entries by attribute lookup, and export does not need them.
_NODE_METADATA = frozenset({"stack_trace", "nn_module_stack", "torch_fn", "from_node", "custom"})

# Higher-order operators that torch.export writes and that call nothing but the subgraphs and operators they are given.
_HIGHER_ORDER = frozenset(
    {
        *("cond", "while_loop", "scan", "associative_scan", "map_impl", "invoke_subgraph", "flex_attention"),
        *("wrap_with_set_grad_enabled", "wrap_with_autocast", "auto_functionalized", "auto_functionalized_v2"),
        *("with_effects", "out_dtype"),
    }
)
_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)\.(\w+)")
_HIGHER_ORDER_OPERATOR = re.compile(r"torch\.ops\.higher_order\.(\w+)")
_SIZE_FUNCTION = re.compile(r"torch\.(_?sym_\w+)")
# Operators that read attributes or files by a name.
_REFUSED_NAMESPACES = frozenset({"export", "debugprims"})
_FILE_ARGUMENT = re.compile(r"file|path|folder|directory|ur[il]", re.IGNORECASE)
# Attributes that instances of `GraphModule` and `Module` have and their classes do not.
MODULE_STATE = frozenset(
    {
        *("_graph", "_code", "_lineno_map", "_prologue_start", "_in_spec", "_out_spec", "_guards_fn", "_wrapped_call"),
        *("_tracer_cls", "_tracer_extras", "_create_node_hooks", "_deepcopy_hooks", "_erase_node_hooks"),
        *("_replace_hooks", "meta", "shape_env", "range_constraints", "validate_inputs"),
        *vars(torch.nn.Module()),
    }
)


@dataclasses.dataclass(frozen=True)
class CheckedProgram:
    """What torch may load of a file: an archive without pickled members, and the example inputs apart from it."""

    archive: IO[bytes]
    example_inputs: tuple[tuple[Any, ...], dict[str, Any]] | None


class _RefusedError(ModelExportError):
    """The file contains something that runs code, or that is not known to be safe."""


@contextlib.contextmanager
def checked_program(path: Path) -> Iterator[CheckedProgram]:
    """Check an exported program and write what was checked to a new archive, which exists within this context.

    The file is read once: changing it afterwards has no effect.

    Raises:
        ModelSourceError: The file is not an exported program, or loading it could run code; says why.
    """
    with tempfile.SpooledTemporaryFile(max_size=_LARGEST_IN_MEMORY) as target:
        try:
            with path.open("rb") as file, zipfile.ZipFile(file) as source, zipfile.ZipFile(target, "w") as archive:
                examples = _copy_checked(source, file.seek(0, io.SEEK_END), archive)
        except _RefusedError as error:
            raise ModelSourceError(
                f"{path} was not loaded: {error}. Loading it could run code that the file contains; export the "
                "original model instead, given as package.module:factory"
            ) from error
        except (OSError, zipfile.BadZipFile, *_UNREADABLE) as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise ModelSourceError(
                f"{path} is not an exported program that can be read: {reason}; save it again with torch.export.save"
            ) from error
        target.seek(0)
        yield CheckedProgram(target, examples)


# What decoding raises for content of the wrong shape.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, NotImplementedError)


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
        payloads = _decode(schema.PayloadConfig, json.loads(read(table)))
        _check_payloads(payloads["config"], table.rpartition("/")[0], members)
        write(table, json.dumps(payloads).encode())
    examples = _load_examples(read(_EXAMPLES))
    # Without content torch has nothing to unpickle.
    write(_EXAMPLES, b"")
    write(_MODEL, json.dumps(_decode(schema.ExportedProgram, json.loads(read(_MODEL)))).encode())
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
        raise _RefusedError(f"it contains {unknown[0]!r}, which torch.export.save does not write for a program")
    return members


def _check_payloads(payloads: Mapping[str, Any], folder: str, members: Mapping[str, zipfile.ZipInfo]) -> None:
    for name, payload in payloads.items():
        member = f"{folder}/{payload['path_name']}"
        if payload["use_pickle"] or member not in members or not _COPIED.fullmatch(member):
            raise _RefusedError(f"{name!r} in {folder} is a pickled object")
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
        raise _RefusedError("its example inputs are pickled objects, not tensors") from error
    args, kwargs = examples
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        raise TypeError("its example inputs are not positional and keyword arguments")
    for name in kwargs:
        _check_name(name)
    # torch writes the path of each input into the code that checks the inputs.
    for keys, _ in leaves_with_keys(examples):
        for key in keys:
            if not isinstance(key, int):
                _check_text(key)
    return args, kwargs


def _decode(kind: Any, value: Any, field: str = "") -> Any:
    """The value as far as torch's schema knows it, with every text checked by the rule of its field.

    Args:
        kind: A class of the schema, or the annotation of a field.
        value: What the JSON of the file has there.
        field: Class and field that the value belongs to, as `Node.target`.
    """
    arguments = typing.get_args(kind)
    if type(None) in arguments:
        return None if value is None else _decode(arguments[0], value, field)
    if field in _REPLACED:
        return _REPLACED[field](value)
    if kind is str:
        _require(isinstance(value, str), field, value)
        rule: Callable[[str], object] = _RULES.get(field, _check_name)
        rule(value)
        return value
    if typing.get_origin(kind) is list:
        _require(isinstance(value, list), field, value)
        return [_decode(arguments[0], part, field) for part in value]
    if typing.get_origin(kind) is dict:
        _require(isinstance(value, dict), field, value)
        return {_decode(str, key, field): _decode(arguments[1], part, field) for key, part in value.items()}
    if dataclasses.is_dataclass(kind):
        return _decode_class(typing.cast("type", kind), value)
    if kind is float:
        _require(type(value) in (int, float) or value in _NONFINITE, field, value)
        return value
    # Numbers, truth values, and the numbers of enumerations.
    _require(type(value) in ((bool,) if kind is bool else (int,)), field, value)
    return value


def _decode_class(kind: type, value: Any) -> dict[str, Any]:
    schema = program_schema()
    _require(isinstance(value, dict), kind.__name__, value)
    if kind is schema.CustomObjArgument:
        raise _RefusedError("it uses objects of classes that are not torch's")
    hints = _fields(kind)
    if is_schema_union(kind):
        _require(len(value) == 1 and set(value) <= set(hints), kind.__name__, value)
    decoded = {
        name: _decode(hint, value[name], f"{kind.__name__}.{name}") for name, hint in hints.items() if name in value
    }
    if kind is schema.Node:
        _check_node(decoded)
    elif kind is schema.Graph:
        # torch compares a text input with the example's in generated code, between single quotes.
        for graph_input in decoded["inputs"]:
            _check_text(graph_input.get("as_string", ""))
    return decoded


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind, globalns=vars(program_schema()))


def _require(holds: bool, field: str, value: object) -> None:
    if not holds:
        raise ValueError(f"{field} is {str(value)[:60]!r}")


def _check_node(node: Mapping[str, Any]) -> None:
    """Names and texts that generated code has for a node whose operator has no schema."""
    if _OPERATOR.fullmatch(node["target"]):
        return  # torch takes the names from the operator's schema, and writes texts with repr()
    for argument in node["inputs"]:
        _check_name(argument["name"])
        for text in (argument["arg"].get("as_string", ""), *argument["arg"].get("as_strings", ())):
            _check_text(text)


def _check_name(text: Any) -> None:
    """The name of a variable, an argument or the like, which torch writes into code as it is."""
    if not isinstance(text, str) or (text and (not text.isidentifier() or keyword.iskeyword(text))):
        raise _RefusedError(f"it has the name {str(text)[:60]!r}, which is not an identifier")


def _check_argument_name(text: str) -> None:
    """Schemas of torch have arguments such as `from`; `_check_node` looks at those of other operators."""
    if not keyword.iskeyword(text):
        _check_name(text)


def _check_text(text: Any) -> None:
    """A text that torch may write into code between quotes."""
    if not isinstance(text, str) or not text.isprintable() or _QUOTING.search(text):
        raise _RefusedError(f"it has the text {str(text)[:60]!r}, which is not safe between quotes in Python code")


def _check_attribute(text: str) -> None:
    """The path of a module or tensor, which generated code looks up in a `GraphModule`.

    A path through an attribute that the class itself has would give code a method, such as one that writes files.
    """
    _check_text(text)
    owner: type = torch.fx.GraphModule
    for part in text.split("."):
        if part.startswith("__") or hasattr(owner, part) or part in MODULE_STATE:
            raise _RefusedError(f"{text[:60]!r} names an attribute of torch's own {owner.__name__}")
        owner = torch.nn.Module


def _check_graph_name(text: str) -> None:
    _check_name(text)
    _check_attribute(text)


def _accept_any_text(text: str) -> None:
    """Accept a text that torch writes with `repr()` only; `_decode_class` checks those of inputs and subgraphs."""


def _check_symbol(text: str) -> None:
    if not is_size_symbol(text):
        raise _RefusedError(f"it has the symbol {text[:60]!r}")


def _check_target(text: str) -> None:
    """A node may call operators of torch, and Python's operators on sizes; they are found by their exact names."""
    if not _is_operator(text):
        raise _RefusedError(f"a node calls {text[:60]!r}, which is not an operator of torch that may be called")


def _is_operator(text: str) -> bool:
    if match := _OPERATOR.fullmatch(text):
        found: Any = torch.ops
        for name in match.groups():
            found = getattr(found, name, None)
        return (
            is_operator_overload(found)
            and found.namespace not in _REFUSED_NAMESPACES
            and not any("str" in str(a.type) and _FILE_ARGUMENT.search(a.name) for a in schema_of(found).arguments)
        )
    if match := _HIGHER_ORDER_OPERATOR.fullmatch(text):
        return match[1] in _HIGHER_ORDER and hasattr(torch.ops.higher_order, match[1])
    if match := _SIZE_FUNCTION.fullmatch(text):
        return isinstance(getattr(torch, match[1], None), types.FunctionType)
    return text in _size_operators()


@functools.cache
def _size_operators() -> frozenset[str]:
    return frozenset(f"{known.__module__}.{known.__name__}" for known in (*size_operators(), operator.getitem))


def _check_inputs_structure(text: str) -> None:
    """Names of keyword arguments become names of the generated function's arguments."""
    structure = _check_structure(text)
    children = structure["children_spec"]
    if len(children) == 2 and children[1]["type"] == "builtins.dict":
        for name in json.loads(children[1]["context"]):
            _check_name(name)


def _check_structure(text: str) -> Any:
    """The nesting of inputs or outputs: known containers with their keys, nothing that the file says how to build."""
    _, structure = json.loads(text)
    remaining = [structure]
    while remaining:
        node = remaining.pop()
        remaining.extend(node["children_spec"])
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
                raise _RefusedError(f"its inputs or outputs contain a {node['type']}, which the file says how to build")
    return structure


def _check_expression(text: str) -> None:
    if not is_size_expression(text):
        raise _RefusedError(f"the size {text[:60]!r} is more than a calculation")


def _kept_metadata(metadata: Any) -> dict[str, str]:
    return {key: str(text) for key, text in metadata.items() if key in _NODE_METADATA}


# Fields that are written anew instead of being checked. Guards are Python code; the graph does not depend on them.
_REPLACED: dict[str, Callable[[Any], Any]] = {
    "Node.metadata": _kept_metadata,
    "GraphModule.metadata": lambda metadata: {},
    "ExportedProgram.guards_code": lambda guards: [],
}
# The rule of each field with text, keys included; every other field has names (`_check_name`).
_RULES: dict[str, Callable[[str], object]] = {
    "Node.target": _check_target,
    "NamedArgument.name": _check_argument_name,
    "Argument.as_operator": _check_target,
    "Argument.as_string": _accept_any_text,
    "Argument.as_strings": _accept_any_text,
    "Argument.as_string_to_argument": _check_text,
    "GraphArgument.name": _check_graph_name,
    "ConstantValue.as_string": _check_text,
    "SymExpr.expr_str": _check_expression,
    "ExportedProgram.range_constraints": _check_symbol,
    "ExportedProgram.torch_version": _check_text,
    "ModuleCallSignature.in_spec": _check_inputs_structure,
    "ModuleCallSignature.out_spec": _check_structure,
    "ModuleCallEntry.fqn": _check_text,
    "GraphModule.treespec_namedtuple_fields": _check_text,
    "InputToParameterSpec.parameter_name": _check_attribute,
    "InputToBufferSpec.buffer_name": _check_attribute,
    "InputToTensorConstantSpec.tensor_constant_name": _check_attribute,
    "BufferMutationSpec.buffer_name": _check_attribute,
    "ParameterMutationSpec.parameter_name": _check_attribute,
    "GradientToParameterSpec.parameter_name": _check_attribute,
    "PayloadConfig.config": _check_attribute,
}
