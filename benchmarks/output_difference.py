"""Compare what onnxruntime computes with what PyTorch returns, by position; it shares nothing with the package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

# The absolute tolerance is a fraction of the largest finite value of an output.
RTOL, ATOL = 1e-3, 1e-4


def difference(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """The first difference of a file's results from PyTorch's tensors and numbers, by position; "" without one."""
    if len(expected) > len(found):
        # An exporter writes a number only where it depends on the inputs.
        expected = [value for value in expected if isinstance(value, np.ndarray)]
    if len(found) != len(expected):
        return f"{len(found)} outputs, and PyTorch returns {len(expected)}"
    for position, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        problem = _difference(np.asarray(ours), np.asarray(theirs), is_number=not isinstance(theirs, np.ndarray))
        if problem:
            return f"output {position}: {problem}"
    return ""


def _difference(ours: np.ndarray, theirs: np.ndarray, *, is_number: bool) -> str:
    if ours.shape != theirs.shape or (ours.dtype != theirs.dtype and not is_number):
        return f"it is {ours.dtype} {ours.shape}, and PyTorch's {theirs.dtype} {theirs.shape}"
    if not np.issubdtype(theirs.dtype, np.inexact):
        count = int((ours != theirs).sum())
        return f"{count} of {theirs.size} values are others" if count else ""
    finite = np.isfinite(theirs)
    largest = float(np.abs(theirs[finite]).max(initial=0.0))
    equal = np.isclose(ours, theirs, rtol=RTOL, atol=ATOL * max(largest, np.finfo(np.float32).tiny), equal_nan=True)
    if equal.all():
        return ""
    apart = np.abs(ours[finite] - theirs[finite]).max(initial=0.0)
    return f"off by {apart:.3g} in {int((~equal).sum())} of {theirs.size} values, and the largest is {largest:.3g}"
