"""What a validation rule is, and the file that it checks: graph, sidecar and node metadata, each read once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path

import onnx

from modelexport.analysis import Case, Severity
from modelexport.analysis.contamination import OwnerCheck
from modelexport.errors import ContractError, FileFormatError
from modelexport.graph import TensorType, value_types
from modelexport.hierarchy import HierarchyDocument, NodeRecord
from modelexport.ort import ModelChecks, check_file
from modelexport.storage import ModelFile

REPAIR = "modelexport repair FILE --force restores missing stores from the others"
# For a file that has none of the stores.
TAG = "modelexport tag FILE --model MODEL --force adds the hierarchy to a file of another exporter"


class ValidatedFile:
    """A model file with its sidecar, and the baseline that its graph must equal.

    Attributes:
        model: The model; large inline weights are read only with `weights`.
        sidecar: The path of its sidecar, which need not exist.
        document: The sidecar's content, if it exists and can be read.
        sidecar_problem: Why the sidecar cannot be read; empty if it can be, or does not exist.
        baseline: The model of the baseline file.
    """

    def __init__(self, path: str | Path, baseline: str | Path | None = None, *, weights: bool = False) -> None:
        self.opened = ModelFile(path, weights=weights)
        self._has_weights = weights
        self.path = self.opened.path
        self.model = self.opened.proto
        self.nodes = self.opened.nodes
        self.baseline = ModelFile(baseline).proto if baseline is not None else None
        self.sidecar = self.opened.sidecar
        self.document: HierarchyDocument | None = None
        self.sidecar_problem = ""
        try:
            self.document = self.opened.sidecar_document
        except FileFormatError as error:
            self.sidecar_problem = str(error)

    @cached_property
    def model_with_weights(self) -> onnx.ModelProto:
        """The model with its inline weights."""
        return self.model if self._has_weights else ModelFile(self.path, weights=True).proto

    @property
    def required_document(self) -> HierarchyDocument:
        """The document, for rules that run only if there is one."""
        if self.document is None:
            raise ContractError(f"{self.path} has no readable sidecar, and a rule that needs one was run")
        return self.document

    @cached_property
    def has_hierarchy(self) -> bool:
        """Whether there is any of our stores, a damaged one too."""
        has_sidecar = self.document is not None or bool(self.sidecar_problem)
        return has_sidecar or any(one.doc_string or one.module or one.damaged for one in self.opened.stores)

    @cached_property
    def main_nodes(self) -> list[tuple[str, onnx.NodeProto]]:
        """The nodes of the main graph with their ids."""
        if len(self.nodes) == len(self.model.graph.node):
            return self.nodes
        own = {id(node) for node in self.model.graph.node}
        return [(node_id, node) for node_id, node in self.nodes if id(node) in own]

    @cached_property
    def tensors(self) -> set[str]:
        """The names of the tensors of the main graph."""
        graph = self.model.graph
        names = {value.name for value in graph.input}
        names.update(weight.name for weight in graph.initializer)
        names.update(weight.values.name for weight in graph.sparse_initializer)
        for node in graph.node:
            names.update(node.output)
        return names

    @cached_property
    def types(self) -> dict[str, TensorType]:
        """The types of tensors that the file records."""
        return value_types(self.model.graph)

    @cached_property
    def records(self) -> dict[str, NodeRecord]:
        """The node records of the sidecar, by node id."""
        return {record.id: record for record in self.document.nodes} if self.document is not None else {}

    @cached_property
    def model_checks(self) -> ModelChecks:
        """The results of the ONNX checker and of shape inference."""
        return check_file(self.path, self.model)

    @cached_property
    def owner_check(self) -> OwnerCheck:
        """The check of the owners of its nodes by the file alone."""
        document = self.required_document
        return OwnerCheck.from_file(self.model, document, lambda: self.model_checks.inferred)


@dataclasses.dataclass(frozen=True)
class Violation:
    """A violation of a rule: the problem, the node it is about, and the severity if it is not that of the rule."""

    message: str
    node: str | None = None
    severity: Severity | None = None
    case: Case | None = None


@dataclasses.dataclass(frozen=True)
class Rule:
    """A validation rule.

    Attributes:
        title: The requirement.
        needs_document: Whether it is skipped without a readable sidecar.
        fix: What to do about a violation.
        optional: Whether it runs only on request.
        lists_all: Whether the report lists all violations, however many.
    """

    id: str
    title: str
    check: Callable[[ValidatedFile], Iterable[Violation]]
    needs_document: bool = False
    fix: str = "export the model again"
    optional: bool = False
    lists_all: bool = False
