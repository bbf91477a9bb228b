"""A saved exported program: `torch.onnx.export(program)`, with the stack of modules that it keeps for each node.

No hook can run: the Python of the model is gone. But every node of the program, those in the blocks under a `no_grad`
or `autocast` included, has the stack of modules that were running when it was traced, with the number of each call.
What torch makes of a node carries its serial number; what it makes of such a block carries that of the node that runs
the block, and is found by the line of code that torch generates for it. Where neither leads to a stack, nothing is
claimed.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch

from modelexport.capture import (
    DYNAMO,
    Capture,
    ExportedProgramModule,
    find_crossings,
    module_stack,
    program_of,
    read_module_tree,
)
from modelexport.capture.fx.dynamo import SeenExport, describe_program, recorded_calls, see_export
from modelexport.capture.fx.evidence import FxSources, axis_sizes, enclosing_nodes, generated_line, onnx_values
from modelexport.capture.fx.trace_recorder import mark_serial, marks_removed, serial_of
from modelexport.errors import UnusableOptionError
from modelexport.hierarchy import ROOT_CALL, BoundaryTensor, CallId, CallTree, ModuleCall, ModuleTree, TensorInfo
from modelexport.hierarchy.confidence import recorded_by_exporter
from modelexport.torch_support import named_arguments, named_results
from modelexport.torch_support.private import unflatten

_NUMBERED = re.compile(r"(?P<module>.*)@(?P<count>[0-9]{1,9})", re.DOTALL)


def capture_program(model: ExportedProgramModule, options: Mapping[str, Any]) -> Capture:
    """Export a saved program with `torch.onnx.export(program)` and gather what ran each node.

    Args:
        model: The program, as a model.
        options: Further arguments of `torch.onnx.export`.

    Raises:
        UnusableOptionError: An option that was settled when the program was exported.
    """
    for name in ("dynamic_shapes", "dynamic_axes"):
        if options.get(name) is not None:
            raise UnusableOptionError(
                f"the axes of an exported program are those that torch.export.export made dynamic, so that {name} is "
                "of no use.",
                "Leave it out, or export the program anew.",
            )
    program, tree = program_of(model), read_module_tree(model)
    record = ProgramRecord(program, tree)

    def export() -> torch.onnx.ONNXProgram | None:
        return torch.onnx.export(program, (), None, dynamo=True, **{"verbose": False, **options})

    with record.watching():
        seen = see_export(export, DYNAMO)
    sources = FxSources(seen.program)
    recorded = recorded_calls(seen.traced, record, sources)
    return Capture(
        exporter=DYNAMO,
        model=seen.model,
        traced=seen.traced,
        recorded={node: recorded_by_exporter(call) for node, call in recorded.items()},
        tree=tree,
        calls=_with_boundaries(seen, recorded, record.calls(), _root_call(seen.traced.graph, program, tree)),
        traced_as="fx",
        describe=lambda: describe_program(seen.program, record),
        axis_sizes=axis_sizes(seen.traced, sources),
    )


class ProgramRecord:
    """Who ran the nodes of a saved program, and what became of them."""

    def __init__(self, program: torch.export.ExportedProgram, tree: ModuleTree) -> None:
        self._tree = tree
        self._bodies: dict[torch.fx.Node, list[torch.fx.Graph]] = {}
        for body, node in enclosing_nodes(program.graph_module):
            self._bodies.setdefault(node, []).append(body)
        self._nodes = list(_in_order(program.graph, self._bodies))
        self._calls: dict[CallId, ModuleCall] = {}
        self._owners = [self._call_of_stack(node) for node in self._nodes]
        # The serial number of what each line of generated code assigns, by its file.
        self._generated: dict[str, dict[str, int | None]] = {}

    def calls(self) -> CallTree:
        """The calls, in the order they began in."""
        return CallTree(self._calls)

    def call_of(self, node: torch.fx.Node) -> CallId | None:
        """The call that ran what `node` was made of, or None where nothing recorded it."""
        serial = serial_of(node)
        if serial is None:
            return None
        source = self._nodes[serial]
        if source not in self._bodies or source.target is node.target:
            return self._owners[serial]
        # What was made of a block that was put in the place of the node that ran it.
        line = generated_line(node)
        inner = self._generated.get(line[0], {}).get(line[1]) if line is not None else None
        return self._owners[inner] if inner is not None else None

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """For the time of the context, serial numbers on the nodes, and a look at each graph that torch runs."""
        with marks_removed(self._nodes):
            for serial, node in enumerate(self._nodes):
                mark_serial(node, serial)
            handle = torch.nn.modules.module.register_module_forward_pre_hook(self._see_generated)
            try:
                yield
            finally:
                handle.remove()

    def _see_generated(self, module: torch.nn.Module, args: object) -> None:
        code = getattr(type(module).forward, "__code__", None)
        if isinstance(module, torch.fx.GraphModule) and code is not None:
            self._generated[code.co_filename] = {node.name: serial_of(node) for node in module.graph.nodes}

    def _call_of_stack(self, node: torch.fx.Node) -> CallId | None:
        call: CallId | None = None
        for key, path, _ in module_stack(node):
            if path not in self._tree or (call is None and path):
                # An entry that stands for no module: the rest of such a stack tells nothing either.
                return None
            inner = CallId(path, _call_index(key, path))
            if inner not in self._calls:
                self._calls[inner] = ModuleCall(path, inner.index, call)
            call = inner
        return call


def _call_index(key: str, path: str) -> int:
    """How many calls of the module came before, by the key of a stack's entry.

    A key is the module's name behind a prefix, or its identity in the process that traced it; from the second call on
    ``@count`` follows.
    """
    numbered = _NUMBERED.fullmatch(key)
    if numbered is None or not (numbered["module"].endswith(path) or numbered["module"].isdigit()):
        return 0
    return int(numbered["count"])


def _in_order(graph: torch.fx.Graph, bodies: Mapping[torch.fx.Node, list[torch.fx.Graph]]) -> Iterator[torch.fx.Node]:
    """The nodes as they run, those of a block or body before the node that runs it."""
    for node in graph.nodes:
        for body in bodies.get(node, ()):
            yield from _in_order(body, bodies)
        yield node


def _with_boundaries(
    seen: SeenExport, recorded: Mapping[ir.Node, CallId], calls: CallTree, root: ModuleCall
) -> CallTree:
    """The calls with the tensors that enter and leave them by data flow; what arguments they were is not recorded."""
    graph = seen.traced.graph
    entering, leaving = find_crossings(graph, recorded, calls)
    values = {value.name: value for node in graph for value in node.outputs}
    values |= {value.name: value for value in graph.inputs}
    # What torch's translation of one node makes and that of another uses is no tensor of the program.
    of_program = set(onnx_values(seen.program, seen.traced).values())

    def boundary(crossing: list[str], word: str) -> tuple[BoundaryTensor, ...]:
        names = [name for name in crossing if name in of_program]
        single = len(names) == 1
        return tuple(
            BoundaryTensor(word if single else f"{word}_{number}", name, _info(values[name]))
            for number, name in enumerate(names)
        )

    found = {
        call.id: ModuleCall(
            call.path,
            call.index,
            call.parent,
            inputs=boundary(entering.get(call.id, []), "input"),
            outputs=boundary(leaving.get(call.id, []), "output"),
        )
        for call in calls
    }
    return CallTree({**found, root.id: root})


def _root_call(graph: ir.Graph, program: torch.export.ExportedProgram, tree: ModuleTree) -> ModuleCall:
    """The root's call: the graph's own ends, under the names that the program keeps for them."""
    spec = program.call_spec
    given, returned = _stand_ins(spec.in_spec, len(graph.inputs)), _stand_ins(spec.out_spec, len(graph.outputs))
    arguments = tree[ROOT_CALL.path].forward_arguments
    inputs = list(named_arguments(arguments, *given[0])) if given is not None else []
    outputs = list(named_results(returned[0])) if returned is not None else []
    return ModuleCall(
        ROOT_CALL.path,
        inputs=_ends(graph.inputs, inputs, given[1] if given is not None else []),
        outputs=_ends(graph.outputs, outputs, returned[1] if returned is not None else []),
    )


def _stand_ins(spec: Any, count: int) -> tuple[Any, list[torch.Tensor]] | None:
    """Something nested as `spec` says with a tensor for each leaf, and those tensors; None where their number is not
    that of the graph's ends."""
    if spec is None or spec.num_leaves != count:
        return None
    leaves = [torch.empty(0) for _ in range(count)]
    return unflatten(leaves, spec), leaves


def _ends(
    values: Sequence[ir.Value], named: list[tuple[str, torch.Tensor]], leaves: list[torch.Tensor]
) -> tuple[BoundaryTensor, ...]:
    names = {id(tensor): name for name, tensor in named}
    known = [names.get(id(leaf)) for leaf in leaves] or [None] * len(values)
    return tuple(
        BoundaryTensor(name or value.name or "", value.name, _info(value))
        for name, value in zip(known, values, strict=True)
    )


def _info(value: ir.Value) -> TensorInfo | None:
    if value.shape is None or value.dtype is None:
        return None
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    return TensorInfo(shape, str(value.dtype.numpy()) if value.dtype != ir.DataType.STRING else "string")
