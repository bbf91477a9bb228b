"""Checks of an untrusted model file, on the parsed proto, before anything else uses it.

Names that are not UTF-8, cycles in the data flow, recursive functions or functions that expand without bound, external
data outside the model's folder. Nothing here recurses, opens a file, or allocates memory by sizes the file gives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from modelexport.errors import FileFormatError
from modelexport.hierarchy import MAX_RANK, MAX_SIZE
from modelexport.limits import ReadLimits
from modelexport.storage.external_data import DataFolder

_FunctionKey = tuple[str, str, str]
_TYPES = frozenset(int(kind) for kind in ir.DataType if kind != ir.DataType.UNDEFINED)
# How many nodes of a cycle an error names.
_NAMED = 8
# Reports name the operators of each module.
_MOST_OPERATOR_CHARACTERS = 1000
# The id of a node or tensor in a subgraph or function begins with the ids of all owning nodes. Together these take
# this much memory; a file can repeat a name of a megabyte in the id of every node.
_MOST_PREFIX_CHARACTERS = 2**26


def check_model(proto: onnx.ModelProto, file: Path, limits: ReadLimits) -> None:
    """Refuse a model that cannot be traversed safely.

    Args:
        proto: The model, with or without the content of its weights.
        file: Its path as the user gave it: external data may only be in its folder.
        limits: What is accepted.

    Raises:
        FileFormatError: Names the problem and its place.
    """
    _check_names(file, "the model", (), _model_names(proto))
    prefixes = 0
    for where, nodes, names, prefix in _graphs(proto, file):
        _check_names(file, where, nodes, names)
        _check_order(file, where, nodes)
        if prefix:
            prefixes += prefix * (len(names) + sum(len(node.input) + len(node.output) + 1 for node in nodes))
            if prefixes > _MOST_PREFIX_CHARACTERS:
                raise FileFormatError(
                    f"{file} has ids of more than {_MOST_PREFIX_CHARACTERS:,} characters: the names of owning nodes or "
                    f"functions, which the ids of the nodes in {where} begin with, are too long"
                )
    check_functions(proto, file, limits.expanded_nodes)
    folder = DataFolder(file, limits)
    for owner, tensor in _tensors(proto):
        if tensor.data_type not in _TYPES:
            raise FileFormatError(f"{file} has a tensor of unknown type {tensor.data_type} in {owner}")
        # The number of axes first: the product of many large ones takes long.
        if len(tensor.dims) > MAX_RANK or any(size < 0 for size in tensor.dims) or math.prod(tensor.dims) > MAX_SIZE:
            raise FileFormatError(
                f"{file} has a tensor with an impossible shape in {owner}: more than {MAX_RANK} axes, an axis of "
                "negative size, or more than 2^63 elements"
            )
        if _is_external(tensor):
            folder.check(owner, tensor)


# --- names and order -------------------------------------------------------------------------------------------

# A list of nodes: a description of its place, the nodes, names declared beside it, and the length of the ids' prefix.
_Graph = tuple[str, Sequence[onnx.NodeProto], Sequence[str], int]


def _graphs(proto: onnx.ModelProto, file: Path) -> Iterator[_Graph]:
    """Every list of nodes of the file."""
    waiting: list[_Graph] = [
        (
            f"function {_text(function.name)}",
            function.node,
            [*function.input, *function.output],
            len(function.domain) + len(function.name) + len(function.overload) + 5,
        )
        for function in reversed(proto.functions)
    ]
    waiting.append(("the main graph", proto.graph.node, _declared(proto.graph), 0))
    while waiting:
        current = waiting.pop()
        yield current
        for node in current[1]:
            for attribute in node.attribute:
                subgraphs = _subgraphs(attribute)
                if not subgraphs:
                    continue
                where = f"{_text(attribute.name)} of {_label(node)}"
                if not _has_graph_type(attribute):
                    raise FileFormatError(f"{file} has a subgraph in {where}, an attribute of another type")
                prefix = current[3] + len(next(filter(None, node.output), "")) + len(attribute.name) + 2
                waiting.extend((where, subgraph.node, _declared(subgraph), prefix) for subgraph in subgraphs)


def _declared(graph: onnx.GraphProto) -> list[str]:
    return [value.name for value in (*graph.input, *graph.output, *graph.initializer)]


def _model_names(proto: onnx.ModelProto) -> list[str]:
    functions = [name for f in proto.functions for name in (f.domain, f.name, f.overload)]
    return [*functions, *(opset.domain for opset in proto.opset_import)]


def _subgraphs(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs]


def _has_graph_type(attribute: onnx.AttributeProto) -> bool:
    """Whether the type of an attribute matches the subgraphs in it, so that all parsers find the same ones."""
    if attribute.ref_attr_name:
        return False
    kind = onnx.AttributeProto.GRAPHS if attribute.graphs else onnx.AttributeProto.GRAPH
    return attribute.type == kind and not (attribute.graphs and attribute.HasField("g"))


def _check_names(file: Path, where: str, nodes: Iterable[onnx.NodeProto], names: Iterable[str]) -> None:
    """Refuse names that are not UTF-8: protobuf returns them as bytes, which no code downstream expects."""
    try:
        for node in nodes:
            "".join((*node.input, *node.output, node.op_type, node.domain, node.overload, node.name))
            for attribute in node.attribute:
                "".join((attribute.name, attribute.ref_attr_name))
            if len(node.op_type) > _MOST_OPERATOR_CHARACTERS:
                raise FileFormatError(f"{file} has an operator name of {len(node.op_type)} characters in {where}")
            if len(node.attribute) > 1 and len({attribute.name for attribute in node.attribute}) < len(node.attribute):
                raise FileFormatError(f"{file} has an attribute twice in {_label(node)}: which one counts is undefined")
        "".join(names)
    except TypeError as error:
        raise FileFormatError(
            f"{file} has a name that is not UTF-8 in {where}: it is not a valid ONNX model"
        ) from error


def _check_order(file: Path, where: str, nodes: Sequence[onnx.NodeProto]) -> None:
    """Refuse a cycle in the data flow. A sorted graph, as ONNX requires, takes one pass."""
    seen: set[str] = set()
    # Names consumed before they are produced: inputs, initializers, outer values, and outputs of later nodes.
    early: set[str] = set()
    for node in nodes:
        early.update(name for name in node.input if name not in seen)
        seen.update(node.output)
    early.discard("")
    if early.isdisjoint(seen):
        return
    cycle = _cycle(nodes)
    if cycle:
        shown = " → ".join(_label(nodes[position]) for position in cycle[:_NAMED])
        raise FileFormatError(f"{file} has a cycle in {where}: {shown}: its nodes cannot be ordered")


def _cycle(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """The positions of the nodes of a cycle, in the order of the data flow; empty where there is none."""
    producers = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    above = [sorted({producers[name] for name in node.input if name in producers}) for node in nodes]
    consumers: list[list[int]] = [[] for _ in nodes]
    for position, sources in enumerate(above):
        for source in sources:
            consumers[source].append(position)
    missing = [len(sources) for sources in above]
    ready = [position for position, count in enumerate(missing) if not count]
    while ready:
        for consumer in consumers[ready.pop()]:
            missing[consumer] -= 1
            if not missing[consumer]:
                ready.append(consumer)
    stuck = {position for position, count in enumerate(missing) if count}
    if not stuck:
        return []
    # Every stuck node has a stuck source, so walking up the sources ends in a cycle.
    path: dict[int, int] = {}
    current = min(stuck)
    while current not in path:
        path[current] = len(path)
        current = next(source for source in above[current] if source in stuck)
    found = list(path)[path[current] :][::-1]
    first = found.index(min(found))
    return found[first:] + found[:first]


# --- functions -------------------------------------------------------------------------------------------------


def check_functions(proto: onnx.ModelProto, file: Path, expanded_nodes: int) -> None:
    """Refuse recursive functions, and more nodes after inlining, which are counted without inlining.

    Raises:
        FileFormatError: Names the problem.
    """
    functions = {(f.domain, f.name, f.overload): _uses(f.node) for f in proto.functions}
    if len(functions) < len(proto.functions):
        raise FileFormatError(f"{file} has two functions of the same name: which one counts is undefined")
    if not functions:
        return
    sizes: dict[_FunctionKey, int] = {}
    most = expanded_nodes + 1

    def expanded(count: int, used: Mapping[_FunctionKey, int]) -> int:
        # Capped at the limit: a hundred functions that call the next one twice give a number of a hundred bits.
        return min(most, count + sum(sizes.get(key, 0) * times for key, times in used.items()))

    for top in functions:
        # Each function on the path, with the calls in it that are still to be visited.
        opened = {} if top in sizes else {top: iter(functions[top][1])}
        while opened:
            key = next(reversed(opened))
            called = next((used for used in opened[key] if used in functions and used not in sizes), None)
            if called is None:
                sizes[key] = expanded(*functions[key])
                del opened[key]
            elif called in opened:
                path = list(opened)
                shown = " → ".join(_text(name) for _, name, _ in [*path[path.index(called) :][:_NAMED], called])
                raise FileFormatError(f"{file} has a recursive function: {shown}")
            else:
                opened[called] = iter(functions[called][1])
    if expanded(*_uses(proto.graph.node)) == most:
        raise FileFormatError(
            f"{file} has more nodes than the limit of {expanded_nodes} after its functions are inlined"
        )


def _uses(nodes: Sequence[onnx.NodeProto]) -> tuple[int, dict[_FunctionKey, int]]:
    """The number of nodes, subgraphs included, and how often each operator is used."""
    count = 0
    used: Counter[_FunctionKey] = Counter()
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            count += 1
            used[node.domain, node.op_type, node.overload] += 1
            for attribute in node.attribute:
                waiting += [subgraph.node for subgraph in _subgraphs(attribute)]
    return count, used


# --- external data ---------------------------------------------------------------------------------------------


def external_tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every tensor with external data, in subgraphs and functions too, with a description of its place."""
    for where, tensor in _tensors(proto):
        if _is_external(tensor):
            yield where, tensor


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.external_data) or tensor.data_location == onnx.TensorProto.EXTERNAL


def _tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    graphs = [proto.graph]
    owners: list[tuple[onnx.NodeProto | None, Sequence[onnx.AttributeProto]]] = []
    for function in proto.functions:
        owners.append((None, function.attribute_proto))
        owners.extend((node, node.attribute) for node in function.node)
    while graphs or owners:
        while graphs:
            graph = graphs.pop()
            yield from ((f"weight {_text(tensor.name)}", tensor) for tensor in graph.initializer)
            for sparse in graph.sparse_initializer:
                yield from (("a sparse weight", part) for part in (sparse.values, sparse.indices))
            owners.extend((node, node.attribute) for node in graph.node if node.attribute)
        node, attributes = owners.pop() if owners else (None, ())
        for attribute in attributes:
            graphs.extend(_subgraphs(attribute))
            # An attribute of type TENSOR without a tensor is parsed as a tensor without a type.
            missing = attribute.type == onnx.AttributeProto.TENSOR and not attribute.ref_attr_name
            single = attribute.HasField("t") or missing
            tensors = [*([attribute.t] if single else ()), *attribute.tensors]
            sparse_tensors = [*([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else ())]
            for sparse in (*sparse_tensors, *attribute.sparse_tensors):
                tensors += [sparse.values, sparse.indices]
            for tensor in tensors:
                owner = "a function" if node is None else _label(node)
                yield f"{_text(attribute.name)} of {owner}", tensor


# --- labels ----------------------------------------------------------------------------------------------------


def _label(node: onnx.NodeProto) -> str:
    name = next((output for output in node.output if output), node.name)
    return f"{_text(node.op_type)} {_text(name)}"


def _text(name: str | bytes) -> str:
    """A name for an error message: decoded and shortened."""
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    return repr(text if len(text) <= 80 else text[:80] + "…")
