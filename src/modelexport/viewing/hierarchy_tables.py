"""The tables of a page that come from the document: modules with the columns of ``analyze``, and calls."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from modelexport.analysis.query import count_modules
from modelexport.hierarchy import ROOT_PATH, BoundaryTensor, CallId, CallRecord, HierarchyDocument, parent_path
from modelexport.viewing.page_data import KINDS, NONE, Calls, Modules, Port, StringTable
from modelexport.viewing.tensor_texts import shape_text


def with_root_call(document: HierarchyDocument) -> HierarchyDocument:
    """The document with the root call as the first of its calls, and as the caller of those that name none."""
    root = str(CallId(ROOT_PATH))
    first = next((call for call in document.calls if call.id == root), None)
    tag = next(module.tag for module in document.modules if module.path == ROOT_PATH)
    others = [
        call if call.parent is not None else msgspec.structs.replace(call, parent=root)
        for call in document.calls
        if call.id != root
    ]
    return msgspec.structs.replace(document, calls=(first or CallRecord(root, ROOT_PATH, 0, tag), *others))


def module_table(document: HierarchyDocument, strings: StringTable) -> Modules:
    """The modules, in the order of the document."""
    add = strings.add
    numbers = {module.path: number for number, module in enumerate(document.modules)}
    modules, counts = document.modules, count_modules(document)
    above = [parent_path(module.path) for module in modules]
    return Modules(
        path=[add(module.path) for module in modules],
        class_name=[add(module.class_name) for module in modules],
        qualified_class=[add(module.qualified_class) for module in modules],
        tag=[add(module.tag) for module in modules],
        visible=[int(module.visible) for module in modules],
        parent=[NONE if path is None else numbers[path] for path in above],
        parameters=[
            [add(text) for name, info in m.parameters.items() for text in (name, info.dtype, shape_text(info.shape))]
            for m in modules
        ],
        calls=[count.calls for count in counts],
        own_nodes=[count.own_nodes for count in counts],
        nodes=[count.nodes for count in counts],
        own_parameters=[count.own_parameters for count in counts],
        parameters_total=[count.parameters for count in counts],
        parameter_bytes=[count.parameter_bytes for count in counts],
        operations=[[part for op, n in count.operations.items() for part in (add(op), n)] for count in counts],
        kinds=[[part for kind, n in count.kinds.items() for part in (KINDS.index(kind), n)] for count in counts],
        lowest_confidence=[count.lowest_confidence for count in counts],
        aliases={numbers[m.path]: [add(name) for name in m.aliases] for m in modules if m.aliases},
        arguments={
            numbers[m.path]: [add(argument.name) for argument in m.forward_arguments]
            for m in modules
            if m.forward_arguments
        },
    )


def call_table(document: HierarchyDocument, tensors: Mapping[str, int], strings: StringTable) -> Calls:
    """The calls, in the order of the document; `tensors` has the tensors of the graph by id."""
    add = strings.add
    modules = {module.path: number for number, module in enumerate(document.modules)}
    numbers = {call.id: number for number, call in enumerate(document.calls)}
    counts = Counter(node.module for node in document.nodes)
    own = [counts[call.id] for call in document.calls]
    parents = [NONE if call.parent is None else numbers[call.parent] for call in document.calls]

    def port(boundary: BoundaryTensor) -> Port:
        number = NONE if boundary.tensor is None else tensors.get(boundary.tensor, NONE)
        stand_in = NONE if boundary.stand_in is None else tensors.get(boundary.stand_in, NONE)
        info = boundary.info if number == NONE else None
        if stand_in == NONE and info is None:
            return [add(boundary.name), number]
        dtype, shape = ("", "") if info is None else (info.dtype, shape_text(info.shape))
        return [add(boundary.name), number, stand_in, add(dtype), add(shape)]

    return Calls(
        id=[add(call.id) for call in document.calls],
        module=[modules[call.path] for call in document.calls],
        parent=parents,
        tag=[add(call.tag) for call in document.calls],
        inputs=[[port(boundary) for boundary in call.inputs] for call in document.calls],
        outputs=[[port(boundary) for boundary in call.outputs] for call in document.calls],
        own_nodes=own,
        nodes=with_callees(own, parents),
    )


def with_callees(own: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The value of each call with those of all calls inside of it."""
    totals = [0] * len(own)
    for number, value in enumerate(own):
        current = number if value else NONE
        while current != NONE:
            totals[current] += value
            current = parents[current]
    return totals
