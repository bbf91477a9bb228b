"""Runs the cases: one eager run, one export for each file and one for each column, shared by all tests."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

import modelexport
from tests.conformance.case import DYNAMIC, Case
from tests.support.eager_calls import EagerCall, record_calls
from tests.support.plain import fresh_generated_code
from tests.support.subgraphs import walk_nodes
from tests.support.value_check import plain_control_flow, run_onnx, watch


@dataclasses.dataclass(frozen=True)
class Claim:
    """The calls that a column names for a node, or the modules if it does not distinguish calls."""

    owner: str | None
    contributors: tuple[str, ...] = ()
    kind: str = ""
    label: str = ""

    @property
    def names(self) -> frozenset[str]:
        return frozenset((*(() if self.owner is None else (self.owner,)), *self.contributors))


class Truth:
    """The eager runs, one for each of the inputs."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.model, self.inputs = case.example()
        # A run may change buffers: each uses a new model.
        runs = [watch(copy.deepcopy(self.model), args, kwargs) for args, kwargs in self.inputs]
        self.results = [run.results for run in runs]
        # The calls that ran an operator themselves.
        self.running = {call for run in runs for call in run.ran}
        with plain_control_flow():
            self.calls: list[dict[str, EagerCall]] = [
                record_calls(copy.deepcopy(self.model), args, kwargs) for args, kwargs in self.inputs
            ]
        self.paths = {path for path, _ in self.model.named_modules()}
        self.names: dict[str, str] = {}
        for path, module in self.model.named_modules(remove_duplicate=False):
            self.names[path] = next(p for p, m in self.model.named_modules() if m is module)

    def module_of(self, call: str) -> str:
        """The module path of a call."""
        path, _, index = call.rpartition("@")
        return path if index.isdigit() else call

    def value(self, wanted: Any) -> np.ndarray:
        """The output of a call, or of a function of the model and its inputs."""
        if isinstance(wanted, str):
            return next(iter(self.calls[0][wanted].outputs.values()))
        args, kwargs = self.inputs[0]
        with torch.no_grad():
            return np.asarray(wanted(copy.deepcopy(self.model), kwargs or args).detach().float().numpy())


class File:
    """An exported file, and every tensor of it for each of the inputs."""

    def __init__(self, path: Path, truth: Truth) -> None:
        self.path = path
        self.proto = onnx.load(path)
        self.nodes = list(walk_nodes(self.proto))
        self.feeds = [self._feed(args, kwargs) for args, kwargs in truth.inputs]
        self.tensors = [run_onnx(path, feeds, subgraphs=True) for feeds in self.feeds]

    def _feed(self, args: Any, kwargs: Any) -> dict[str, np.ndarray]:
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        tensors = [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]
        return {value.name: tensor for value, tensor in zip(self.proto.graph.input, tensors, strict=True)}

    def producer(self, value: np.ndarray) -> str | None:
        """The first node of the main graph that computes this value."""
        for identity, node in self.nodes:
            for name in node.output:
                found = self.tensors[0].get(name)
                if found is None or identity != next(output for output in node.output if output):
                    continue
                if found.shape == value.shape and np.allclose(found.astype(np.float32), value, rtol=1e-3, atol=1e-4):
                    return identity
        return None


class Column:
    """A file, and the owners that one strategy or the exporter itself claims for its nodes."""

    def __init__(self, truth: Truth, file: File, kind: str, claims: Mapping[str, Claim], *, by_call: bool) -> None:
        self.truth = truth
        self.file = file
        self.kind = kind
        self.claims = claims
        self.by_call = by_call
        self.document: modelexport.HierarchyDocument | None = None
        # The path of the file with these claims.
        self.path = file.path


class Bench:
    """The results of all runs so far, each computed once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._truths: dict[str, Truth] = {}
        self._files: dict[tuple[str, str], tuple[File, modelexport.HierarchyDocument]] = {}
        self._columns: dict[tuple[str, str, str], Column] = {}

    def truth(self, name: str, case: Case) -> Truth:
        if name not in self._truths:
            self._truths[name] = Truth(case)
        return self._truths[name]

    def column(self, name: str, case: Case, strategy: str, kind: str) -> Column:
        """The claims of a strategy for a file."""
        key = (name, strategy, kind)
        if key not in self._columns:
            truth = self.truth(name, case)
            file, document = self._exported(name, case, kind)
            target = file.path
            if strategy == "usage_based":
                args, kwargs = truth.inputs[0]
                target = file.path.with_name(f"usage-{file.path.name}")
                model = copy.deepcopy(truth.model)
                document = modelexport.tag_file(file.path, model, kwargs or args, target).document
            self._columns[key] = Column(truth, file, kind, _claims(document), by_call=not case.loops)
            self._columns[key].document, self._columns[key].path = document, target
        return self._columns[key]

    def _exported(self, name: str, case: Case, kind: str) -> tuple[File, modelexport.HierarchyDocument]:
        key = (name, kind)
        if key not in self._files:
            path = self._folder / f"{name}-{kind}.onnx"
            model, (inputs, *_) = case.example()
            document = export(model, inputs, path, case, kind).document
            self._files[key] = File(path, self.truth(name, case)), document
        return self._files[key]


def export(model: nn.Module, inputs: Any, path: Path, case: Case, kind: str) -> modelexport.ExportResult:
    """Export with the strategy of the exporter of this kind of file."""
    args, kwargs = inputs
    fresh_generated_code()
    strategy = "fx" if kind.startswith("dynamo") else "htp"
    exporter = case.exporter if strategy == "fx" else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return modelexport.export_model(
            model, kwargs or args, path, strategy=strategy, exporter=exporter, **export_options(case, kind)
        )


def export_options(case: Case, kind: str) -> dict[str, Any]:
    """The arguments of `torch.onnx.export` for a kind of file."""
    options: dict[str, Any] = {}
    raw = "-raw" in kind
    if kind.startswith("dynamo"):
        options["optimize"] = not raw
    elif raw:
        options["do_constant_folding"] = False
    if kind in DYNAMIC and case.dynamic is not None:
        options["input_names"] = list(case.dynamic.names)
        if kind.startswith("dynamo"):
            options["dynamic_shapes"] = case.dynamic.shapes
        else:
            options["dynamic_axes"] = {name: dict(axes) for name, axes in case.dynamic.axes.items()}
    return options


def _claims(document: modelexport.HierarchyDocument) -> dict[str, Claim]:
    return {
        node.id: Claim(node.module, node.contributors, node.kind, " ".join((node.module, *node.contributors)))
        for node in document.nodes
    }
