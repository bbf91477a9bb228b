"""One ONNX graph: node ids, traversal, hash, value numbering, data flow, tensor fingerprints."""

from __future__ import annotations

from modelexport.graph.constants import same_constant, same_elements
from modelexport.graph.digest import SMALL_TENSOR_BYTES, graph_hash
from modelexport.graph.element_types import ELEMENT_TYPES
from modelexport.graph.fingerprints import Array, Fingerprint, ValueIndex, take_fingerprint
from modelexport.graph.flow_graph import NO_NODE, FlowGraph, InferredTypes, TensorType, read_flow_graph, value_types
from modelexport.graph.node_ids import nodes_with_ids, operation, proto_nodes_with_ids
from modelexport.graph.tensors import GraphTensor, shapes_compatible, tensors_with_ids, weight_bytes
from modelexport.graph.traversal import consumed_values, named_values, nodes_of, proto_subgraphs_of, subgraphs_of
from modelexport.graph.value_numbering import ValueNumbers, attributes_key

__all__ = [
    "ELEMENT_TYPES",
    "NO_NODE",
    "SMALL_TENSOR_BYTES",
    "Array",
    "Fingerprint",
    "FlowGraph",
    "GraphTensor",
    "InferredTypes",
    "TensorType",
    "ValueIndex",
    "ValueNumbers",
    "attributes_key",
    "consumed_values",
    "graph_hash",
    "named_values",
    "nodes_of",
    "nodes_with_ids",
    "operation",
    "proto_nodes_with_ids",
    "proto_subgraphs_of",
    "read_flow_graph",
    "same_constant",
    "same_elements",
    "shapes_compatible",
    "subgraphs_of",
    "take_fingerprint",
    "tensors_with_ids",
    "value_types",
    "weight_bytes",
]
