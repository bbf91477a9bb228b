"""Check the text of a symbolic size in a saved exported program, which torch evaluates as Python."""

from __future__ import annotations

import ast
import re

from modelexport.torch_support.private_export import size_functions

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


def is_size_symbol(text: str) -> bool:
    """Whether a text is the name of a symbol, such as `s77` or `u0`."""
    return _SYMBOL.fullmatch(text) is not None


def is_size_expression(text: str) -> bool:
    """Whether a text is a size as sympy prints it, and nothing but a calculation."""
    try:
        return len(text) <= _LARGEST_EXPRESSION and _is_size(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False  # not Python, or nested too deeply for its parser


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
