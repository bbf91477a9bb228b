"""Trace torch's own decompositions of the operators that the TorchScript exporter cannot translate.

The exporter's error names the operator; there is no list of operators here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from modelexport.errors import find_own_error
from modelexport.torch_support.private_jit import decompositions_of

Result = TypeVar("Result")

# Each missing operator takes one more export.
_MAX_OPERATORS = 16
_NAMED = re.compile(r"'(?P<namespace>\w+)::(?P<name>\w+)'")


def export_despite_missing(
    export: Callable[[], Result], check: Callable[[Result], None]
) -> tuple[Result, tuple[str, ...]]:
    """Run `export`, and repeat it with decompositions of the operators that it cannot translate.

    Args:
        export: Exports a model.
        check: Raises where the result of an export with decompositions is invalid.

    Returns:
        The result, and the operators that were decomposed for it.

    Raises:
        Exception: The error of the first export, where decompositions do not help.
    """
    try:
        return export(), ()
    except Exception as error:
        if find_own_error(error) is not None:
            raise
        first = error
    missing: dict[str, None] = {}
    operator = _missing_operator(first)
    while operator is not None and operator not in missing and len(missing) < _MAX_OPERATORS:
        missing[operator] = None
        try:
            with _Decomposing(missing):
                found = export()
            check(found)
        except Exception as error:
            own = find_own_error(error)
            if own is not None:
                raise own from error
            operator = _missing_operator(error)
        else:
            return found, tuple(missing)
    raise first


def _missing_operator(error: BaseException | None) -> str | None:
    """Return the operator that the exporter could not translate, from its error; None for other errors."""
    while error is not None:
        if isinstance(error, torch.onnx.errors.UnsupportedOperatorError):
            found = _NAMED.search(str(error))
            return f"{found['namespace']}::{found['name']}" if found is not None else None
        error = error.__cause__ or error.__context__
    return None


class _Decomposing(TorchFunctionMode):
    """Runs decompositions instead of these operators, so that the trace contains the decompositions."""

    def __init__(self, operators: Collection[str]) -> None:
        super().__init__()
        self._by_name = {operator.partition("::")[2]: operator for operator in operators}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        operator = self._by_name.get(getattr(func, "__name__", ""))
        for decompose in decompositions_of(operator) if operator is not None else ():
            try:
                result = decompose(*args, **(kwargs or {}))
            except (RuntimeError, TypeError):
                # Another overload may accept these arguments; if none does, the operator itself raises the right error.
                continue
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))
