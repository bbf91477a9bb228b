"""Correct what some converters write wrong: nodes that are not sorted, and the element types of converted tensors."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from modelexport.graph import value_types
from modelexport.ort import infer_types
from modelexport.storage import UntaggedFile, build_ir


def correct(file: UntaggedFile, tagged: ir.Model) -> tuple[UntaggedFile, tuple[str, ...]]:
    """The file with sorted nodes and the element types that its operators return, and a note on each change.

    Args:
        file: The rewritten file. Its own model may be changed.
        tagged: The model it was rewritten from.
    """
    notes = tuple(note for note in (_sort_nodes(file), _correct_types(file, tagged)) if note)
    return (dataclasses.replace(file, graph=build_ir(file.path, file.proto)) if notes else file), notes


def _sort_nodes(file: UntaggedFile) -> str:
    positions = {node: position for position, node in enumerate(file.graph.graph)}
    try:
        file.graph.graph.sort()
    except ValueError:  # a cycle: the file stays invalid
        return ""
    order = [positions[node] for node in file.graph.graph]
    if order == sorted(order):
        return ""
    nodes = list(file.proto.graph.node)
    del file.proto.graph.node[:]
    file.proto.graph.node.extend(nodes[position] for position in order)
    return "the nodes of the file were not sorted; they are now"


def _correct_types(file: UntaggedFile, tagged: ir.Model) -> str:
    """Correct `value_info` where a converter changed the type of tensors and left it as it was."""
    graph = file.proto.graph
    before = {value.name: value.dtype for value in (*tagged.graph.inputs, *tagged.graph.initializers.values())}
    before.update((value.name, value.dtype) for node in tagged.graph for value in node.outputs)
    if all(before.get(name) in (None, known.element) for name, known in value_types(graph).items()):
        return ""
    found = infer_types(file.proto)
    types = {name: known.element for name, known in value_types(found).items()} if found is not None else {}
    types.update((weight.name, weight.data_type) for weight in graph.initializer)
    kept = [value for value in graph.value_info if value.name in types]
    wrong = [value for value in kept if value.type.tensor_type.elem_type != types[value.name]]
    if not wrong:
        return ""
    for value in wrong:
        value.type.tensor_type.elem_type = types[value.name]
    removed = len(graph.value_info) - len(kept)
    del graph.value_info[:]
    graph.value_info.extend(kept)
    note = f"value_info had the wrong element type for {len(wrong)} tensors, and now has that of their operators"
    return f"{note}; {removed} entries that cannot be inferred were removed" if removed else note
