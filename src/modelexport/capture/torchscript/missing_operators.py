"""Operators that the TorchScript exporter has no translation for: torch's own decompositions are traced instead.

Which operators those are, the exporter says when it fails; nothing here knows one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode

from modelexport.torch_support.private_jit import decompositions_of

Result = TypeVar("Result")

# A model lacks a few operators at most; each is found by another export.
_MOST_OPERATORS = 16
_NAMED = re.compile(r"'(?P<namespace>\w+)::(?P<name>\w+)'")


def export_despite_missing(
    export: Callable[[], Result], check: Callable[[Result], None]
) -> tuple[Result, tuple[str, ...]]:
    """What `export` returns, repeated with decompositions for the operators that it turns out to lack.

    Args:
        export: Exports a model.
        check: Raises where what was exported with decompositions cannot be right.

    Returns:
        The result, and the operators that were decomposed for it, if any.

    Raises:
        Exception: What `export` raised the first time, where decompositions do not help.
    """
    try:
        return export(), ()
    except Exception as error:  # noqa: BLE001  raised below unless it asks for decompositions that help
        first = error
    missing: dict[str, None] = {}
    operator = _missing_operator(first)
    while operator is not None and operator not in missing and len(missing) < _MOST_OPERATORS:
        missing[operator] = None
        try:
            with _Decomposing(missing):
                found = export()
            check(found)
        except Exception as error:  # noqa: BLE001  the first one says what is wrong with the model as it is
            operator = _missing_operator(error)
        else:
            return found, tuple(missing)
    raise first


def _missing_operator(error: BaseException | None) -> str | None:
    """The operator that the exporter says it has no translation for."""
    while error is not None:
        if isinstance(error, torch.onnx.errors.UnsupportedOperatorError):
            found = _NAMED.search(str(error))
            return f"{found['namespace']}::{found['name']}" if found is not None else None
        error = error.__cause__ or error.__context__
    return None


class _Decomposing(TorchFunctionMode):
    """Runs what an operator is made of in its place, so that this is what a trace shows."""

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
                # Another overload may take these arguments; if none does, the operator itself says what is wrong.
                continue
            if result is not NotImplemented:
                return result
        return func(*args, **(kwargs or {}))
