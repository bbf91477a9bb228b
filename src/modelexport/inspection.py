"""What a model file from a stranger must not do, checked on the file as it was parsed, before anything follows it.

Names that are no text, data that flows in a circle, functions that call themselves or unfold without end, weights that
are said to lie outside of the model's folder. Nothing here recurses, opens a file, or allocates by what the file says.
"""

from __future__ import annotations

import math
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath

import onnx
import onnx_ir as ir

from modelexport.errors import FileFormatError
from modelexport.limits import ReadLimits

_FunctionKey = tuple[str, str, str]
_TYPES = frozenset(int(kind) for kind in ir.DataType if kind != ir.DataType.UNDEFINED)
# How many members of a circle an error names.
_NAMED = 8


def check_model(proto: onnx.ModelProto, file: Path, limits: ReadLimits) -> None:
    """Refuse a model that cannot be walked or followed safely.

    Args:
        proto: The model, with or without the content of its weights.
        file: Where it was read, as the user named it: its folder is where external data may lie.
        limits: What is accepted.

    Raises:
        FileFormatError: Says what is wrong, and where.
    """
    _check_names(file, "the model", (), _model_names(proto))
    for where, nodes, names in _graphs(proto, file):
        _check_names(file, where, nodes, names)
        _check_order(file, where, nodes)
    _check_functions(proto, file, limits)
    folder = DataFolder(file, limits)
    for owner, tensor in _tensors(proto):
        if tensor.data_type not in _TYPES:
            raise FileFormatError(f"{file} has a tensor of no known type ({tensor.data_type}) in {owner}")
        if _is_external(tensor):
            folder.check(owner, tensor)


# --- names and order -------------------------------------------------------------------------------------------

_Graph = tuple[str, Sequence[onnx.NodeProto], Iterable[str]]


def _graphs(proto: onnx.ModelProto, file: Path) -> Iterator[_Graph]:
    """Every list of nodes with words for where it is and names declared beside it: main graph, bodies, functions."""
    waiting: list[_Graph] = [
        (f"function {_text(function.name)}", function.node, [*function.input, *function.output])
        for function in reversed(proto.functions)
    ]
    waiting.append(("the main graph", proto.graph.node, _declared(proto.graph)))
    while waiting:
        current = waiting.pop()
        yield current
        for node in current[1]:
            for attribute in node.attribute:
                bodies = _bodies(attribute)
                if bodies and not _is_said_to_hold_them(attribute):
                    raise FileFormatError(
                        f"{file} has a body in {_text(attribute.name)} of {_label(node)}, which is not said to hold one"
                    )
                where = f"{_text(attribute.name)} of {_label(node)}" if bodies else ""
                waiting.extend((where, body.node, _declared(body)) for body in bodies)


def _declared(graph: onnx.GraphProto) -> list[str]:
    return [value.name for value in (*graph.input, *graph.output, *graph.initializer)]


def _model_names(proto: onnx.ModelProto) -> list[str]:
    functions = [name for f in proto.functions for name in (f.domain, f.name, f.overload)]
    return [*functions, *(opset.domain for opset in proto.opset_import)]


def _bodies(attribute: onnx.AttributeProto) -> list[onnx.GraphProto]:
    return [*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs]


def _is_said_to_hold_them(attribute: onnx.AttributeProto) -> bool:
    """Whether a reader that goes by the type of an attribute finds the bodies that are in it, and no others."""
    if attribute.ref_attr_name:
        return False
    kind = onnx.AttributeProto.GRAPHS if attribute.graphs else onnx.AttributeProto.GRAPH
    return attribute.type == kind and not (attribute.graphs and attribute.HasField("g"))


def _check_names(file: Path, where: str, nodes: Iterable[onnx.NodeProto], names: Iterable[str]) -> None:
    """Protobuf hands out a name that is not UTF-8 as bytes, which nothing downstream expects."""
    try:
        for node in nodes:
            "".join((*node.input, *node.output, node.op_type, node.domain, node.overload, node.name))
            for attribute in node.attribute:
                "".join((attribute.name, attribute.ref_attr_name))
            if len(node.attribute) > 1 and len({attribute.name for attribute in node.attribute}) < len(node.attribute):
                raise FileFormatError(f"{file} has an attribute twice in {_label(node)}: readers take either")
        "".join(names)
    except TypeError as error:
        raise FileFormatError(f"{file} has a name that is not UTF-8 in {where}: it is damaged, or not ONNX") from error


def _check_order(file: Path, where: str, nodes: Sequence[onnx.NodeProto]) -> None:
    """Find data that flows in a circle. Sorted graphs, as ONNX wants them, take one look at each node."""
    seen: set[str] = set()
    # What was read before it was made: inputs, weights, values of graphs around, and what comes too late.
    early: set[str] = set()
    for node in nodes:
        early.update(name for name in node.input if name not in seen)
        seen.update(node.output)
    early.discard("")
    if early.isdisjoint(seen):
        return
    circle = _circle(nodes)
    if circle:
        shown = " → ".join(_label(nodes[position]) for position in circle[:_NAMED])
        raise FileFormatError(f"{file} has data that flows in a circle in {where}: {shown}: no order can run it")


def _circle(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """The positions of nodes that wait for each other, in the order of the flow; empty where there are none."""
    producers = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    above = [sorted({producers[name] for name in node.input if name in producers}) for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for position, sources in enumerate(above):
        for source in sources:
            readers[source].append(position)
    missing = [len(sources) for sources in above]
    ready = [position for position, count in enumerate(missing) if not count]
    while ready:
        for reader in readers[ready.pop()]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)
    stuck = {position for position, count in enumerate(missing) if count}
    if not stuck:
        return []
    # Every stuck node has a stuck source: walking up must come back to where it was.
    way: dict[int, int] = {}
    current = min(stuck)
    while current not in way:
        way[current] = len(way)
        current = next(source for source in above[current] if source in stuck)
    found = list(way)[way[current] :][::-1]
    first = found.index(min(found))
    return found[first:] + found[:first]


# --- functions -------------------------------------------------------------------------------------------------


def _check_functions(proto: onnx.ModelProto, file: Path, limits: ReadLimits) -> None:
    """Find functions that call themselves, and sum up what a file unfolds to without unfolding it."""
    functions = {(f.domain, f.name, f.overload): _uses(f.node) for f in proto.functions}
    if len(functions) < len(proto.functions):
        raise FileFormatError(f"{file} has two functions of one name: readers take either")
    if not functions:
        return
    sizes: dict[_FunctionKey, int] = {}
    most = limits.expanded_nodes + 1

    def expanded(count: int, used: Mapping[_FunctionKey, int]) -> int:
        # Cut off at the limit: a hundred functions that call the next one twice make a number of a hundred bits.
        return min(most, count + sum(sizes.get(key, 0) * times for key, times in used.items()))

    for top in functions:
        # Each function that is being unfolded, with the calls in it that are still to be looked at.
        opened = {} if top in sizes else {top: iter(functions[top][1])}
        while opened:
            key = next(reversed(opened))
            called = next((used for used in opened[key] if used in functions and used not in sizes), None)
            if called is None:
                sizes[key] = expanded(*functions[key])
                del opened[key]
            elif called in opened:
                way = list(opened)
                shown = " → ".join(_text(name) for _, name, _ in [*way[way.index(called) :][:_NAMED], called])
                raise FileFormatError(f"{file} has a function that calls itself: {shown}")
            else:
                opened[called] = iter(functions[called][1])
    if expanded(*_uses(proto.graph.node)) == most:
        raise FileFormatError(
            f"{file} unfolds to more nodes than the limit of {limits.expanded_nodes} once its functions are inlined"
        )


def _uses(nodes: Sequence[onnx.NodeProto]) -> tuple[int, dict[_FunctionKey, int]]:
    """How many nodes there are, bodies included, and how often each operation is used."""
    count = 0
    used: Counter[_FunctionKey] = Counter()
    waiting = [nodes]
    while waiting:
        for node in waiting.pop():
            count += 1
            used[node.domain, node.op_type, node.overload] += 1
            for attribute in node.attribute:
                waiting += [body.node for body in _bodies(attribute)]
    return count, used


# --- external data ---------------------------------------------------------------------------------------------


def external_tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    """Every tensor whose content is said to lie in another file, wherever it is, with words for where."""
    for where, tensor in _tensors(proto):
        if _is_external(tensor):
            yield where, tensor


def _is_external(tensor: onnx.TensorProto) -> bool:
    return bool(tensor.external_data) or tensor.data_location == onnx.TensorProto.EXTERNAL


def _tensors(proto: onnx.ModelProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    graphs = [proto.graph]
    holders: list[tuple[onnx.NodeProto | None, Sequence[onnx.AttributeProto]]] = []
    for function in proto.functions:
        holders.append((None, function.attribute_proto))
        holders.extend((node, node.attribute) for node in function.node)
    while graphs or holders:
        while graphs:
            graph = graphs.pop()
            yield from ((f"weight {_text(tensor.name)}", tensor) for tensor in graph.initializer)
            for sparse in graph.sparse_initializer:
                yield from (("a sparse weight", part) for part in (sparse.values, sparse.indices))
            holders.extend((node, node.attribute) for node in graph.node if node.attribute)
        node, attributes = holders.pop() if holders else (None, ())
        for attribute in attributes:
            graphs.extend(_bodies(attribute))
            # One that is said to be there and is not is read as a tensor without a type.
            missing = attribute.type == onnx.AttributeProto.TENSOR and not attribute.ref_attr_name
            single = attribute.HasField("t") or missing
            tensors = [*([attribute.t] if single else ()), *attribute.tensors]
            sparse_tensors = [*([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else ())]
            for sparse in (*sparse_tensors, *attribute.sparse_tensors):
                tensors += [sparse.values, sparse.indices]
            for tensor in tensors:
                owner = "a function" if node is None else _label(node)
                yield f"{_text(attribute.name)} of {owner}", tensor


def cache_repository(file: Path) -> Path | None:
    """The repository's folder where the file is in a snapshot of a HuggingFace cache, None elsewhere."""
    return next((folder.parent for folder in file.parents if folder.name == "snapshots"), None)


class DataFolder:
    """The folder of a model file, and what in it may hold its weights: regular files that lie there themselves.

    In a HuggingFace cache each file is a link from ``snapshots/<revision>`` to ``blobs`` of the same repository; such
    links, and no others, are followed.
    """

    def __init__(self, file: Path, limits: ReadLimits) -> None:
        self._file = file
        self._limits = limits
        self._sizes: dict[str, int | None] = {}
        # Not `resolve`, which would follow the links of a cache.
        self.path = Path(os.path.abspath(file)).parent  # noqa: PTH100
        self._allowed = [self.path.resolve()]
        repository = cache_repository(self.path / file.name)
        if repository is not None:
            # `blobs` itself may be no link.
            self._allowed.append(repository.resolve() / "blobs")

    def check(self, owner: str, tensor: onnx.TensorProto) -> None:
        """Refuse a tensor whose content lies elsewhere, or beyond the end of its file. A missing file is none.

        Raises:
            FileFormatError: Says which tensor, and why.
        """
        try:
            entries = {entry.key: "" + entry.value for entry in tensor.external_data}
        except TypeError as error:
            raise self._refusal(owner, "its location is not UTF-8") from error
        location = entries.get("location", "")
        if location not in self._sizes:
            self._sizes[location] = self._size(owner, location)
        size = self._sizes[location]
        offset, length = (self._count(owner, key, entries.get(key)) for key in ("offset", "length"))
        if size is None:
            return
        needed = tensor_bytes(tensor)
        start = offset or 0
        if length is not None and needed is not None and length != needed:
            raise self._refusal(owner, f"it is said to have {length} bytes, and its shape needs {needed}")
        extent = length if length is not None else needed or 0
        if start + extent > size:
            raise self._refusal(owner, f"it is said to end at byte {start + extent} of {location!r}, which has {size}")

    def contains(self, path: Path) -> bool:
        """Whether the path, with links followed, is in the folder, or in the cache the folder belongs to."""
        real = path.resolve()
        return any(real.is_relative_to(folder) for folder in self._allowed)

    def _size(self, owner: str, location: str) -> int | None:
        """The size of a data file, None where it does not exist."""
        windows = PureWindowsPath(location)
        if not location or "\0" in location:
            raise self._refusal(owner, "it names no file")
        if location.startswith(("/", "\\")) or windows.drive or windows.root:
            raise self._refusal(owner, f"{location!r} is an absolute path")
        if ".." in windows.parts or ".." in PurePosixPath(location).parts:
            raise self._refusal(owner, f"{location!r} lies outside its folder")
        target = self.path / location
        try:
            if not self.contains(target):
                raise self._refusal(owner, f"{location!r} is a link to outside its folder")
            status = target.stat()
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RuntimeError) as error:
            raise self._refusal(owner, f"{location!r} cannot be looked at: {error}") from error
        if not stat.S_ISREG(status.st_mode):
            raise self._refusal(owner, f"{location!r} is not a regular file")
        if status.st_nlink > 1 and not self._limits.linked_data:
            raise self._refusal(owner, f"{location!r} has further names (hard links), and may be from elsewhere")
        return status.st_size

    def _count(self, owner: str, key: str, text: str | None) -> int | None:
        if text is None:
            return None
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise self._refusal(owner, f"its {key} {text[:40]!r} is not a number of bytes")
        return int(text)

    def _refusal(self, owner: str, problem: str) -> FileFormatError:
        return FileFormatError(f"{self._file} keeps {owner} in another file, and {problem}: it is not followed")


def tensor_bytes(tensor: onnx.TensorProto) -> int | None:
    """How many bytes a tensor takes by its shape and type, without reading it; None for types that are not numbers."""
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError):
        return None
    count: int = math.prod(tensor.dims)
    return -(-count * bits // 8)


# --- words -----------------------------------------------------------------------------------------------------


def _label(node: onnx.NodeProto) -> str:
    name = next((output for output in node.output if output), node.name)
    return f"{_text(node.op_type)} {_text(name)}"


def _text(name: str | bytes) -> str:
    """A name for an error: text whatever it is, and not too much of it."""
    text = name.decode(errors="replace") if isinstance(name, bytes) else name
    return repr(text if len(text) <= 80 else text[:80] + "…")
