"""What differs between two nodes that stand in the same place of two models."""

from __future__ import annotations

import dataclasses

import onnx

from modelexport.analysis.comparison.model_index import ABSENT, Outline
from modelexport.analysis.comparison.node_matching import Matching

# Kinds of change that make another topology. A shape is a note of the exporter's, and follows from the rest.
TOPOLOGY = frozenset({"operation", "attributes", "inputs", "outputs", "weights", "constants"})
_WEIGHTS = ("weight", "sparse weight")


@dataclasses.dataclass(frozen=True)
class PairChange:
    """Which things differ, and in words how."""

    what: tuple[str, ...]
    detail: str


def changes_of_pairs(matching: Matching) -> dict[int, PairChange]:
    """For each node of the first model that has a partner and differs from it, what differs."""
    found: dict[int, PairChange] = {}
    before, after = matching.before, matching.after
    for a, b in enumerate(matching.to_after):
        if b < 0:
            continue
        differs: dict[str, str] = {}
        if before.operations[a] != after.operations[b]:
            differs["operation"] = f"{before.label(a)} → {after.label(b)}"
        if before.attributes[a] != after.attributes[b]:
            differs["attributes"] = _attribute_changes(before, a, after, b)
        _compare_inputs(matching, a, b, differs)
        if len(before.outputs[a]) != len(after.outputs[b]):
            differs["outputs"] = f"{len(before.outputs[a])} → {len(after.outputs[b])} outputs"
        _compare_shapes(before, a, after, b, differs)
        if differs:
            found[a] = PairChange(tuple(differs), "; ".join(text for text in differs.values() if text))
    return found


def _attribute_changes(before: Outline, a: int, after: Outline, b: int) -> str:
    first, second = dict(before.attributes[a]), dict(after.attributes[b])
    names = [name for name in dict.fromkeys((*first, *second)) if first.get(name) != second.get(name)]
    return ", ".join(f"{name} {_shown(first.get(name))} → {_shown(second.get(name))}" for name in names)


def _shown(content: tuple[object, ...] | None) -> str:
    if content is None:
        return "unset"
    _, *parts = content
    text = str(parts[0]) if len(parts) == 1 else str(parts)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _compare_inputs(matching: Matching, a: int, b: int, differs: dict[str, str]) -> None:
    before, after = matching.before, matching.after
    first, second = before.inputs[a], after.inputs[b]
    if len(first) != len(second):
        differs["inputs"] = f"{len(first)} → {len(second)} inputs"
    # Operands at the end come and go, those before them stay where they are.
    for slot, (v, w) in enumerate(zip(first, second, strict=False)):
        maker = before.producers[v] if v != ABSENT else ABSENT
        other = after.producers[w] if w != ABSENT else ABSENT
        if maker >= 0 and other >= 0:
            partner, origin = matching.to_after[maker], matching.to_before[other]
            # What is read through nodes that came or went is theirs to tell.
            rewired = partner >= 0 and origin >= 0 and (partner != other or before.slots[v] != after.slots[w])
        else:
            kind_v = "node" if maker >= 0 else before.leaves[v][0] if v in before.leaves else "none"
            kind_w = "node" if other >= 0 else after.leaves[w][0] if w in after.leaves else "none"
            if kind_v == kind_w and kind_v in _WEIGHTS:
                _compare_leaves(slot, before.leaves[v], after.leaves[w], differs)
            if kind_v == kind_w == "argument" and v in matching.inputs:
                rewired = matching.inputs[v] != w
            else:
                # One that is made by a node only one model has, is told there.
                new = (maker >= 0 and matching.to_after[maker] < 0) or (other >= 0 and matching.to_before[other] < 0)
                rewired = kind_v != kind_w and not new
        if rewired:
            differs.setdefault("inputs", f"input {slot} comes from elsewhere")


def _compare_leaves(slot: int, first: tuple[object, ...], second: tuple[object, ...], differs: dict[str, str]) -> None:
    if first == second:
        return
    if first[1:3] != second[1:3]:
        differs.setdefault("weights", f"input {slot}: {_weight_text(first)} → {_weight_text(second)}")
    else:
        differs.setdefault("constants", f"input {slot} has another content")


def _weight_text(leaf: tuple[object, ...]) -> str:
    return f"{type_name(leaf[1])}{leaf[2] if len(leaf) > 2 else ''}"


def type_name(number: object) -> str:
    """The type as ONNX calls it."""
    try:
        return str(onnx.TensorProto.DataType.Name(number)).lower()
    except (ValueError, TypeError):
        return f"type {number}"


# --- shapes ----------------------------------------------------------------------------------------------------


def _compare_shapes(before: Outline, a: int, after: Outline, b: int, differs: dict[str, str]) -> None:
    for v, w in zip(before.outputs[a], after.outputs[b], strict=False):
        first, second = before.types.get(v), after.types.get(w)
        # What a file does not say is no difference.
        if first is None or second is None or first == second:
            continue
        if _type_key(first) != _type_key(second):
            differs.setdefault("shape", f"{type_text(first)} → {type_text(second)}")


def _type_key(data: bytes) -> object:
    """The type without the names of axes, which say nothing but that they can be any size."""
    found = onnx.TypeProto.FromString(data)
    if not found.HasField("tensor_type"):
        return data
    tensor = found.tensor_type
    axes = tuple(axis.dim_value if axis.HasField("dim_value") else None for axis in tensor.shape.dim)
    return tensor.elem_type, axes if tensor.HasField("shape") else None


def type_text(data: bytes | None) -> str:
    """A type as people write it: ``float[2, batch]``."""
    if data is None:
        return "unknown"
    found = onnx.TypeProto.FromString(data)
    if not found.HasField("tensor_type"):
        return str(found.WhichOneof("value") or "unknown").removesuffix("_type")
    tensor = found.tensor_type
    if not tensor.HasField("shape"):
        return type_name(tensor.elem_type)
    axes = ", ".join(
        str(axis.dim_value) if axis.HasField("dim_value") else _axis_name(axis) for axis in tensor.shape.dim
    )
    return f"{type_name(tensor.elem_type)}[{axes}]"


def _axis_name(axis: onnx.TensorShapeProto.Dimension) -> str:
    name: str | bytes = axis.dim_param
    return (name.decode(errors="replace") if isinstance(name, bytes) else name) or "?"
