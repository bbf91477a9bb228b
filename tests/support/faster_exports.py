"""Tables that torch builds anew for each dynamo export, built once: two thirds of the time of a small export."""

from __future__ import annotations

import collections.abc
import contextlib
import copy
from collections.abc import Iterator
from functools import cache
from typing import Any
from unittest import mock

import torch
import torch._export.utils
from torch.onnx._internal.exporter._registration import ONNXRegistry


@contextlib.contextmanager
def faster_exports() -> Iterator[None]:
    """Within, exports share what torch would compute for each of them with the same result."""
    with (
        # Not bound to anything: torch calls it on the class and on an instance.
        mock.patch.object(ONNXRegistry, "from_torchlib", staticmethod(_shared_translations())),
        mock.patch.object(torch._export.utils, "_materialize_cpp_cia_ops", _operators_listed_once()),
        mock.patch.object(collections.abc.Callable, "__class_getitem__", _shared_annotations()),
    ):
        yield


def _shared_translations() -> Any:
    """A copy of one table of ONNX translations for each opset, instead of one built from source code."""
    original = ONNXRegistry.from_torchlib

    @cache
    def build(*opset: int) -> ONNXRegistry:
        return original(*opset)

    def from_torchlib(*opset: int, **named: int) -> ONNXRegistry:
        found = copy.copy(build(*opset, *named.values()))
        found.functions = {target: list(translations) for target, translations in found.functions.items()}
        return found

    return from_torchlib


def _operators_listed_once() -> Any:
    """The operators of C++ become attributes of `torch.ops` once, and again when Python has registered others.

    torch does it 54 times in each export: once for each of its 27 namespaces, for two tables.
    """
    original = torch._export.utils._materialize_cpp_cia_ops
    listed = None

    def materialize() -> None:
        nonlocal listed
        registered = (frozenset(torch.library._defs), frozenset(torch.library._impls))
        if registered != listed:
            original()
            listed = registered

    return materialize


def _shared_annotations() -> Any:
    """Equal annotations ``Callable[P, T]`` are one object.

    torch evaluates them each time it registers a kernel: 23,000 times in each export.
    """
    original = collections.abc.Callable.__class_getitem__

    @cache
    def build(arguments: Any) -> Any:
        return original(arguments)

    def getitem(cls: type, arguments: Any) -> Any:
        try:
            return build(arguments)
        except TypeError:  # a list, as in Callable[[int], str], has no hash
            return original(arguments)

    return classmethod(getitem)
