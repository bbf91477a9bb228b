"""The differences between matched nodes of two models."""

from __future__ import annotations

import onnx

from modelexport.analysis.comparison.model_index import ABSENT, ModelIndex
from modelexport.analysis.comparison.node_matching import NodeMatching
from modelexport.display import counted

# Changes of these kinds change the topology. Recorded shapes follow from the rest.
TOPOLOGY = frozenset({"operation", "attributes", "inputs", "outputs", "weights", "constants"})
_WEIGHTS = ("weight", "sparse weight")


def changed_pairs(matching: NodeMatching) -> dict[int, dict[str, str]]:
    """The matched nodes that differ, by node of the first model: the kinds of change, each with a description."""
    found: dict[int, dict[str, str]] = {}
    before, after = matching.before, matching.after
    for a, b in enumerate(matching.to_after):
        if b < 0:
            continue
        differs: dict[str, str] = {}
        if before.operations[a] != after.operations[b]:
            differs["operation"] = f"{before.label(a)} → {after.label(b)}"
        if before.attributes[a] != after.attributes[b]:
            first, second = dict(before.attributes[a]), dict(after.attributes[b])
            names = [name for name in dict.fromkeys((*first, *second)) if first.get(name) != second.get(name)]
            changes = (f"{name} {_shown(first.get(name))} → {_shown(second.get(name))}" for name in names)
            differs["attributes"] = ", ".join(changes)
        _compare_inputs(matching, a, b, differs)
        if len(before.outputs[a]) != len(after.outputs[b]):
            differs["outputs"] = f"{len(before.outputs[a])} → {counted(len(after.outputs[b]), 'output')}"
        _compare_shapes(before, a, after, b, differs)
        if differs:
            found[a] = differs
    return found


def _shown(content: tuple[object, ...] | None) -> str:
    if content is None:
        return "unset"
    _, *parts = content
    text = str(parts[0]) if len(parts) == 1 else str(parts)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _compare_inputs(matching: NodeMatching, a: int, b: int, differs: dict[str, str]) -> None:
    before, after = matching.before, matching.after
    first, second = before.inputs[a], after.inputs[b]
    if len(first) != len(second):
        differs["inputs"] = f"{len(first)} → {counted(len(second), 'input')}"
    # Optional inputs can be added or removed at the end; the others keep their positions.
    for slot, (v, w) in enumerate(zip(first, second, strict=False)):
        producer = before.producers[v] if v != ABSENT else ABSENT
        other = after.producers[w] if w != ABSENT else ABSENT
        if producer >= 0 and other >= 0:
            match, origin = matching.to_after[producer], matching.to_before[other]
            # An input from an added or removed node is reported as that node's change.
            same_output = before.output_indexes[v] == after.output_indexes[w]
            rewired = match >= 0 and origin >= 0 and (match != other or not same_output)
        else:
            kind_v = "node" if producer >= 0 else before.sources[v][0] if v in before.sources else "none"
            kind_w = "node" if other >= 0 else after.sources[w][0] if w in after.sources else "none"
            if kind_v == kind_w and kind_v in _WEIGHTS:
                _compare_sources(slot, before.sources[v], after.sources[w], differs)
            if kind_v == kind_w == "argument" and v in matching.inputs:
                rewired = matching.inputs[v] != w
            else:
                removed = producer >= 0 and matching.to_after[producer] < 0
                added = other >= 0 and matching.to_before[other] < 0
                rewired = kind_v != kind_w and not (added or removed)
        if rewired:
            differs.setdefault("inputs", f"input {slot} comes from another tensor")


def _compare_sources(slot: int, first: tuple[object, ...], second: tuple[object, ...], differs: dict[str, str]) -> None:
    if first == second:
        return
    if first[1:3] != second[1:3]:
        differs.setdefault("weights", f"input {slot}: {_type_and_shape(first)} → {_type_and_shape(second)}")
    else:
        differs.setdefault("constants", f"the content of input {slot} differs")


def _type_and_shape(source: tuple[object, ...]) -> str:
    return f"{type_name(source[1])}{source[2] if len(source) > 2 else ''}"


def type_name(number: object) -> str:
    """The ONNX name of an element type, in lower case."""
    try:
        return str(onnx.TensorProto.DataType.Name(number)).lower()
    except (ValueError, TypeError):
        return f"type {number}"


def _compare_shapes(before: ModelIndex, a: int, after: ModelIndex, b: int, differs: dict[str, str]) -> None:
    for v, w in zip(before.outputs[a], after.outputs[b], strict=False):
        first, second = before.types.get(v), after.types.get(w)
        # A type that one file does not record does not count as a difference.
        if first is None or second is None or first == second:
            continue
        if _type_key(first) != _type_key(second):
            differs.setdefault("shape", f"{type_text(first)} → {type_text(second)}")


def _type_key(data: bytes) -> object:
    """The type without the names of dynamic axes."""
    found = onnx.TypeProto.FromString(data)
    if not found.HasField("tensor_type"):
        return data
    tensor = found.tensor_type
    axes = tuple(axis.dim_value if axis.HasField("dim_value") else None for axis in tensor.shape.dim)
    return tensor.elem_type, axes if tensor.HasField("shape") else None


def type_text(data: bytes | None) -> str:
    """A type for display: ``float[2, batch]``."""
    if data is None:
        return "unknown"
    found = onnx.TypeProto.FromString(data)
    if not found.HasField("tensor_type"):
        return str(found.WhichOneof("value") or "unknown").removesuffix("_type")
    tensor = found.tensor_type
    if not tensor.HasField("shape"):
        return type_name(tensor.elem_type)
    axes = ", ".join(
        str(axis.dim_value) if axis.HasField("dim_value") else text_of(axis.dim_param) or "?"
        for axis in tensor.shape.dim
    )
    return f"{type_name(tensor.elem_type)}[{axes}]"


def text_of(content: str | bytes) -> str:
    """Text of a proto, which is bytes if it is not UTF-8."""
    return content.decode(errors="replace") if isinstance(content, bytes) else content
