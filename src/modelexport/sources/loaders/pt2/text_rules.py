"""Rules for the texts in the description of a saved exported program (`.pt2`), which torch turns into Python code.

The description is decoded by torch's own schema, and each text in it must satisfy the rule of its field.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import json
import keyword
import operator
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import torch

from modelexport.errors import ModelExportError
from modelexport.torch_support.private import is_operator_overload, schema_of
from modelexport.torch_support.private_export import is_schema_union, program_schema, size_functions, size_operators

_LARGEST_EXPRESSION = 4000
_LARGEST_POWER = 64
# torch counts up to the number of an unbacked symbol, so that the number is bounded as well.
_SYMBOL = re.compile(r"[a-z]+[0-9]{1,6}")
_NUMBER = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?(e[-+]?[0-9]{1,3})?", re.IGNORECASE)
_POWERS = frozenset({"Pow", "PowByNatural", "FloatPow", "LShift"})
# What sympy writes for sizes; torch's own functions of sizes are in torch.utils._sympy.functions.
_EXPRESSIONS = frozenset(
    {
        *("Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Abs", "floor", "ceiling"),
        *("Equality", "Unequality", "StrictLessThan", "LessThan", "StrictGreaterThan", "GreaterThan"),
        *("And", "Or", "Not", "Piecewise", "ExprCondPair"),
    }
)
_WORDS = frozenset({"true", "false", "oo", "int_oo", "nan"})
_SETTINGS = frozenset({"positive", "integer", "negative", "nonnegative", "nonzero", "real", "finite", "precision"})
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


def _is_size(node: ast.AST) -> bool:
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub) and _is_size(node.operand)
    if isinstance(node, ast.Constant):
        return isinstance(node.value, bool | int | float)
    if isinstance(node, ast.Name):
        return node.id in _WORDS or _SYMBOL.fullmatch(node.id) is not None
    if isinstance(node, ast.Tuple):
        return all(_is_size(part) for part in node.elts)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    name, first = node.func.id, node.args[0] if node.args else None
    settings = all(word.arg in _SETTINGS and isinstance(word.value, ast.Constant) for word in node.keywords)
    if name in ("Symbol", "Float") and isinstance(first, ast.Constant) and isinstance(first.value, str):
        pattern = _SYMBOL if name == "Symbol" else _NUMBER
        return settings and len(node.args) == 1 and pattern.fullmatch(first.value) is not None
    known = name in _EXPRESSIONS or _is_size_function(name)
    return known and settings and all(map(_is_size, node.args)) and (name not in _POWERS or _is_small_power(node))


def _is_size_function(name: str) -> bool:
    import sympy  # type: ignore[import-untyped]

    functions = size_functions()
    found = getattr(functions, name, None)
    return isinstance(found, type) and issubclass(found, sympy.Basic) and found.__module__ == functions.__name__


def _is_small_power(node: ast.Call) -> bool:
    """Whether a power is cheap to evaluate: of a symbol, to a small number."""
    if len(node.args) != 2:
        return False
    of_symbol = any(isinstance(part, ast.Name) and part.id == "Symbol" for part in ast.walk(node.args[0]))
    numbers = [part.value for part in ast.walk(node.args[1]) if isinstance(part, ast.Constant)]
    return of_symbol and all(isinstance(n, int | float) and abs(n) <= _LARGEST_POWER for n in numbers)


class RefusedError(ModelExportError):
    """The file contains something that runs code, or that is not known to be safe."""


def decode_checked(kind: Any, value: Any, field: str = "") -> Any:
    """The value as far as torch's schema knows it, with every text checked by the rule of its field.

    Args:
        kind: A class of the schema, or the annotation of a field.
        value: What the JSON of the file has there.
        field: Class and field that the value belongs to, as `Node.target`.
    """
    arguments = typing.get_args(kind)
    if type(None) in arguments:
        return None if value is None else decode_checked(arguments[0], value, field)
    if field in _REPLACED:
        return _REPLACED[field](value)
    if kind is str:
        _require(isinstance(value, str), field, value)
        rule: Callable[[str], object] = _RULES.get(field, check_name)
        rule(value)
        return value
    if typing.get_origin(kind) is list:
        _require(isinstance(value, list), field, value)
        return [decode_checked(arguments[0], part, field) for part in value]
    if typing.get_origin(kind) is dict:
        _require(isinstance(value, dict), field, value)
        return {
            decode_checked(str, key, field): decode_checked(arguments[1], part, field) for key, part in value.items()
        }
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
        raise RefusedError("it uses objects of classes that are not torch's")
    hints = _fields(kind)
    if is_schema_union(kind):
        _require(len(value) == 1 and set(value) <= set(hints), kind.__name__, value)
    decoded = {
        name: decode_checked(hint, value[name], f"{kind.__name__}.{name}")
        for name, hint in hints.items()
        if name in value
    }
    if kind is schema.Node:
        _check_node(decoded)
    elif kind is schema.Graph:
        # torch compares a text input with the example's in generated code, between single quotes.
        for graph_input in decoded["inputs"]:
            check_text(graph_input.get("as_string", ""))
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
        check_name(argument["name"])
        for text in (argument["arg"].get("as_string", ""), *argument["arg"].get("as_strings", ())):
            check_text(text)


def check_name(text: Any) -> None:
    """The name of a variable, an argument or the like, which torch writes into code as it is."""
    if not isinstance(text, str) or (text and (not text.isidentifier() or keyword.iskeyword(text))):
        raise RefusedError(f"it has the name {str(text)[:60]!r}, which is not an identifier")


def _check_argument_name(text: str) -> None:
    """Schemas of torch have arguments such as `from`; `_check_node` looks at those of other operators."""
    if not keyword.iskeyword(text):
        check_name(text)


def check_text(text: Any) -> None:
    """A text that torch may write into code between quotes."""
    if not isinstance(text, str) or not text.isprintable() or _QUOTING.search(text):
        raise RefusedError(f"it has the text {str(text)[:60]!r}, which is not safe between quotes in Python code")


def _check_attribute(text: str) -> None:
    """The path of a module or tensor, which generated code looks up in a `GraphModule`.

    A path through an attribute that the class itself has would give code a method, such as one that writes files.
    """
    check_text(text)
    owner: type = torch.fx.GraphModule
    for part in text.split("."):
        if part.startswith("__") or hasattr(owner, part) or part in MODULE_STATE:
            raise RefusedError(f"{text[:60]!r} names an attribute of torch's own {owner.__name__}")
        owner = torch.nn.Module


def _check_graph_name(text: str) -> None:
    check_name(text)
    _check_attribute(text)


def _accept_any_text(text: str) -> None:
    """Accept a text that torch writes with `repr()` only; `_decode_class` checks those of inputs and subgraphs."""


def _check_symbol(text: str) -> None:
    """The name of a symbol, such as `s77` or `u0`."""
    if _SYMBOL.fullmatch(text) is None:
        raise RefusedError(f"it has the symbol {text[:60]!r}")


def _check_target(text: str) -> None:
    """A node may call operators of torch, and Python's operators on sizes; they are found by their exact names."""
    if not _is_operator(text):
        raise RefusedError(f"a node calls {text[:60]!r}, which is not an operator of torch that may be called")


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
            check_name(name)


def _check_structure(text: str) -> Any:
    """Check the nesting of inputs or outputs: known containers with their keys, no classes that the file defines."""
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
                check_text(str(part))
            else:
                raise RefusedError(f"its inputs or outputs contain a {node['type']}, a class that the file defines")
    return structure


def _check_expression(text: str) -> None:
    """A size as sympy prints it, and nothing but a calculation."""
    known = False
    # Not Python, or nested too deeply for its parser.
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        known = len(text) <= _LARGEST_EXPRESSION and _is_size(ast.parse(text, mode="eval").body)
    if not known:
        raise RefusedError(f"the size {text[:60]!r} is more than a calculation")


def _kept_metadata(metadata: Any) -> dict[str, str]:
    return {key: str(text) for key, text in metadata.items() if key in _NODE_METADATA}


# Fields that are written anew instead of being checked. Guards are Python code; the graph does not depend on them.
_REPLACED: dict[str, Callable[[Any], Any]] = {
    "Node.metadata": _kept_metadata,
    "GraphModule.metadata": lambda metadata: {},
    "ExportedProgram.guards_code": lambda guards: [],
}
# The rule of each field with text, keys included; every other field has names (`check_name`).
_RULES: dict[str, Callable[[str], object]] = {
    "Node.target": _check_target,
    "NamedArgument.name": _check_argument_name,
    "Argument.as_operator": _check_target,
    "Argument.as_string": _accept_any_text,
    "Argument.as_strings": _accept_any_text,
    "Argument.as_string_to_argument": check_text,
    "GraphArgument.name": _check_graph_name,
    "ConstantValue.as_string": check_text,
    "SymExpr.expr_str": _check_expression,
    "ExportedProgram.range_constraints": _check_symbol,
    "ExportedProgram.torch_version": check_text,
    "ModuleCallSignature.in_spec": _check_inputs_structure,
    "ModuleCallSignature.out_spec": _check_structure,
    "ModuleCallEntry.fqn": check_text,
    "GraphModule.treespec_namedtuple_fields": check_text,
    "InputToParameterSpec.parameter_name": _check_attribute,
    "InputToBufferSpec.buffer_name": _check_attribute,
    "InputToTensorConstantSpec.tensor_constant_name": _check_attribute,
    "BufferMutationSpec.buffer_name": _check_attribute,
    "ParameterMutationSpec.parameter_name": _check_attribute,
    "GradientToParameterSpec.parameter_name": _check_attribute,
    "PayloadConfig.config": _check_attribute,
}
