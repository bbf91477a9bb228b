"""The file that is validated: graph, sidecar and what the nodes say, each read once for all rules."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import onnx

from modelexport.analysis.contamination import Evidence
from modelexport.errors import ContractError, FileFormatError
from modelexport.graph import TensorType, value_types
from modelexport.hierarchy import HierarchyDocument, NodeRecord
from modelexport.ort import ModelChecks, check_file
from modelexport.storage import ModelFile, NodeStores


class Subject:
    """A model file with its sidecar, and the file its graph has to equal.

    Attributes:
        file: The opened file.
        path: Its path.
        nodes: Its nodes with their ids.
        model: The model as it lies there; the content of large weights is not read.
        sidecar: Where its sidecar is, or would be.
        document: The sidecar's content, where it can be read.
        unreadable: Why it cannot, in words; empty where there is no sidecar.
        baseline: The model to compare the graph with.
    """

    def __init__(self, path: str | Path, baseline: str | Path | None = None) -> None:
        self.file = ModelFile(path)
        self.path = self.file.path
        self.model = self.file.proto
        self.nodes = self.file.nodes
        self.baseline = ModelFile(baseline).proto if baseline is not None else None
        self.sidecar = self.file.sidecar
        self.document: HierarchyDocument | None = None
        self.unreadable = ""
        try:
            self.document = self.file.sidecar_document
        except FileFormatError as error:
            self.unreadable = str(error)

    @cached_property
    def main_nodes(self) -> list[tuple[str, onnx.NodeProto]]:
        """Those of the main graph."""
        if len(self.nodes) == len(self.model.graph.node):
            return self.nodes
        # A node's identity ends with its first output; behind it stand those of its bodies, then those of functions.
        own = {id(node) for node in self.model.graph.node}
        return [(identity, node) for identity, node in self.nodes if id(node) in own]

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
        """What the file itself says of the types of tensors."""
        return value_types(self.model.graph)

    @property
    def stores(self) -> list[NodeStores]:
        """The hierarchy stored in each node, in the order of `nodes`."""
        return self.file.stores

    @cached_property
    def records(self) -> dict[str, NodeRecord]:
        """What the sidecar says of each node."""
        return {record.id: record for record in self.document.nodes} if self.document is not None else {}

    @cached_property
    def model_checks(self) -> ModelChecks:
        """What the ONNX checker and shape inference say about the file."""
        return check_file(self.path, self.model)

    @cached_property
    def evidence(self) -> Evidence:
        """What the file says about the owners of its nodes."""
        if self.document is None:
            raise ContractError("owners are judged where there is a document")
        return Evidence.gather(self.model, self.document, lambda: self.model_checks.inferred)
