"""A conformance case: a model, its inputs, its calls, and the calls that its nodes must name."""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch import nn

from tests.conformance import cases

SEED = 4

# The files each case is exported to: with the exporter's optimizations, which are its default, and without.
DYNAMO = ("dynamo", "dynamo-raw")
TORCHSCRIPT = ("torchscript", "torchscript-raw")
FILES = (*DYNAMO, *TORCHSCRIPT)
# The same with dynamic axes.
DYNAMIC = tuple(f"{file}-dynamic" for file in FILES)
# Which files each strategy tags.
STRATEGIES = {
    "fx": (*DYNAMO, *DYNAMIC[:2]),
    "htp": (*TORCHSCRIPT, *DYNAMIC[2:]),
    "usage_based": ("dynamo", "dynamo-raw", "torchscript", "dynamo-dynamic"),
}
CRITERIA = ("owned", "values", "contributors", "calls", "named", "boundaries")

Value = str | Callable[[nn.Module, Any], torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Expect:
    """The node that computes `value` names exactly `names`, as owner or contributors.

    Attributes:
        value: A call, for what it returns; or a function of the model and its inputs.
        names: The calls.
        files: The files in which this is so: patterns.
        owner: The owner among them, where only one can be right.
        kinds: The kinds that the attribution may have.
    """

    value: Value
    names: tuple[str, ...]
    files: tuple[str, ...] = ("*",)
    owner: str | None = None
    kinds: tuple[str, ...] = ()

    def is_about(self, file: str) -> bool:
        return any(fnmatchcase(file, pattern) for pattern in self.files)


@dataclasses.dataclass(frozen=True)
class Dynamic:
    """The dynamic axes, in the form of each exporter."""

    shapes: Any
    axes: Mapping[str, Mapping[int, str]]
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Case:
    """One way to lose the owners of nodes.

    Attributes:
        title: The failure, in words.
        build: Gives the model and its example inputs; a list of further inputs may follow, to be judged as well.
        calls: The calls inside each call, in order; None if they are too many to list.
        expects: Who must be named for what.
        removed: Calls that ran operators of which a file keeps none, by pattern on the file.
        unsupported: Why a strategy cannot meet a criterion, by patterns ``strategy:file`` and the criterion.
        refused: Why an exporter cannot take the model at all, by pattern on the file.
        dynamic: Set where the case is about dynamic axes.
        loops: Subgraphs run several times in PyTorch and are traced once: calls are compared by module only.
        judged: The least number of tensors that the value check can tell something about.
        exporter: The exporter for strategy fx.
    """

    title: str
    build: Callable[[], tuple[Any, ...]]
    calls: Mapping[str, tuple[str, ...]] | None
    expects: tuple[Expect, ...] = ()
    removed: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    unsupported: Mapping[tuple[str, str], str] = dataclasses.field(default_factory=dict)
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    dynamic: Dynamic | None = None
    loops: bool = False
    judged: int = 2
    exporter: str | None = None

    def columns(self) -> list[tuple[str, str]]:
        """The pairs of strategy and file that apply, without those that are refused."""
        return [(s, file) for s, files in STRATEGIES.items() for file in files if self.applies(file)]

    def applies(self, file: str) -> bool:
        return (self.dynamic is not None or file in FILES) and self.refusal(file) is None

    def refusal(self, file: str) -> str | None:
        """Why the exporter of this file does not support the model."""
        return next((why for pattern, why in self.refused.items() if fnmatchcase(file, pattern)), None)

    def removed_from(self, file: str) -> set[str]:
        return {call for pattern, calls in self.removed.items() if fnmatchcase(file, pattern) for call in calls}

    def shortcoming(self, strategy: str, file: str, criterion: str) -> str | None:
        """Why this strategy does not meet this criterion on this file."""
        for (pattern, about), why in self.unsupported.items():
            if about == criterion and fnmatchcase(f"{strategy}:{file}", pattern):
                return why
        return None

    def example(self) -> tuple[nn.Module, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
        """The model in evaluation mode, and its inputs as positional and keyword arguments."""
        torch.manual_seed(SEED)
        model, inputs, *more = self.build()
        return model.eval(), [_arguments(given) for given in (inputs, *(more[0] if more else ()))]


def refused_below(version: tuple[int, int], files: str, why: str) -> dict[str, str]:
    """What torch itself cannot export before this version, for `Case.refused`."""
    return {files: f"torch below {'.'.join(map(str, version))}: {why}"} if torch.__version__ < version else {}


def _arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, dict):
        return (), inputs
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


@cache
def all_cases() -> dict[str, Case]:
    """Every case of the folder by name: the file's, and the variant's where a file has several."""
    found = {}
    for module in sorted(pkgutil.iter_modules(cases.__path__), key=lambda module: module.name):
        for variant, case in importlib.import_module(f"{cases.__name__}.{module.name}").CASES.items():
            found[f"{module.name}-{variant}" if variant else module.name] = case
    return found
