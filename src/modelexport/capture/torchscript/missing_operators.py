"""Trace torch's own decompositions of the operators that the TorchScript exporter cannot translate.

The exporter's error names the operator; there is no list of operators here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from modelexport.torch_support.private_jit import decompositions_of

_NAMED = re.compile(r"'(?P<namespace>\w+)::(?P<name>\w+)'")


def missing_operator(error: BaseException | None) -> str | None:
    """Return the operator that the exporter could not translate, from its error; None for other errors."""
    while error is not None:
        if isinstance(error, torch.onnx.errors.UnsupportedOperatorError):
            found = _NAMED.search(str(error))
            return f"{found['namespace']}::{found['name']}" if found is not None else None
        error = error.__cause__ or error.__context__
    return None


class Decomposing(TorchFunctionMode):
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
