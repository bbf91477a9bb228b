"""The file that is validated: graph, sidecar and what the nodes say, each read once for all rules."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import onnx

from modelexport.analysis.contamination import OwnerCheck
from modelexport.errors import ContractError, FileFormatError
from modelexport.graph import TensorType, proto_nodes_with_ids, value_types
from modelexport.hierarchy import HierarchyDocument, NodeRecord
from modelexport.limits import DEFAULT_LIMITS
from modelexport.ort import ModelChecks, check_file
from modelexport.storage import (
    DataFolder,
    NodeStores,
    existing_file,
    read_node_stores,
    read_proto,
    read_sidecar,
    sidecar_path,
)


class Subject:
    """A model file with its sidecar, and the file its graph has to equal.

    Attributes:
        path: The file.
        model: The model in it; large inline weights are read only with `weights`.
        sidecar: Where its sidecar is, or would be.
        document: The sidecar's content, where it can be read.
        unreadable: Why it cannot, in words; empty where there is no sidecar.
        baseline: The model to compare the graph with.
    """

    def __init__(self, path: str | Path, baseline: str | Path | None = None, *, weights: bool = False) -> None:
        self.path = existing_file(path)
        self._has_weights = weights
        self.model = read_proto(self.path, weights=weights)
        self.baseline = read_proto(existing_file(baseline), weights=False) if baseline is not None else None
        self.sidecar = sidecar_path(self.path)
        self.document: HierarchyDocument | None = None
        self.unreadable = ""
        if not self.sidecar.is_file():
            return
        if not DataFolder(self.path, DEFAULT_LIMITS).contains(self.sidecar):
            self.unreadable = f"{self.sidecar} is a link to outside its folder: it is not followed"
            return
        try:
            self.document = read_sidecar(self.sidecar)
        except FileFormatError as error:
            self.unreadable = str(error)

    @cached_property
    def model_with_weights(self) -> onnx.ModelProto:
        """The model with its inline weights."""
        return self.model if self._has_weights else read_proto(self.path, weights=True)

    @cached_property
    def nodes(self) -> list[tuple[str, onnx.NodeProto]]:
        """The nodes with their identities."""
        return proto_nodes_with_ids(self.model)

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

    @cached_property
    def stores(self) -> list[NodeStores]:
        """What each node itself says, in the order of `nodes`."""
        return [read_node_stores(node) for _, node in self.nodes]

    @cached_property
    def records(self) -> dict[str, NodeRecord]:
        """What the sidecar says of each node."""
        return {record.id: record for record in self.document.nodes} if self.document is not None else {}

    @cached_property
    def model_checks(self) -> ModelChecks:
        """What the ONNX checker and shape inference say about the file."""
        return check_file(self.path, self.model)

    @cached_property
    def owner_check(self) -> OwnerCheck:
        """The check of the owners of its nodes by the file alone."""
        if self.document is None:
            raise ContractError("owners are judged where there is a document")
        return OwnerCheck.from_file(self.model, self.document, lambda: self.model_checks.inferred)
