"""torch's table of ONNX translations, made once: each dynamo export makes it anew, in two thirds of its time."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from functools import cache

from torch.onnx._internal.exporter._registration import ONNXRegistry


@contextlib.contextmanager
def table_made_once() -> Iterator[None]:
    """Within, exports get a copy of one table for each opset instead of building theirs from source code."""
    kept = ONNXRegistry.__dict__["from_torchlib"]
    original = ONNXRegistry.from_torchlib

    @cache
    def make(*opset: int) -> ONNXRegistry:
        return original(*opset)

    def from_torchlib(*opset: int, **named: int) -> ONNXRegistry:
        found = copy.copy(make(*opset, *named.values()))
        found.functions = {target: list(translations) for target, translations in found.functions.items()}
        return found

    # Not bound to anything: torch calls it on the class and on an instance.
    ONNXRegistry.from_torchlib = staticmethod(from_torchlib)
    try:
        yield
    finally:
        ONNXRegistry.from_torchlib = kept
