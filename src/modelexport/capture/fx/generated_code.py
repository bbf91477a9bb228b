"""The Python code that torch generates for graph modules, and the FX nodes behind its lines.

torch turns a block under `no_grad` or `autocast`, or the body of a control-flow operator, into a graph module of its
own, and traces the generated code of that module again. The stack trace of a node from the second trace ends in the
generated code: its last line names the file and the assigned variable, which is the name of the node of the first
trace.
"""

from __future__ import annotations

import dataclasses

import torch

from modelexport.capture import StackEntry, read_module_stack
from modelexport.torch_support.private_fx import generated_line, serial_of


@dataclasses.dataclass(frozen=True)
class GeneratedNode:
    """A node of a graph module whose generated code was run.

    Attributes:
        file: The name of the generated file.
        serial: The serial number of the node.
        stack: The module calls that torch recorded for it, outermost first.
    """

    file: str
    serial: int | None
    stack: tuple[StackEntry, ...]


class GeneratedCode:
    """The nodes of the graph modules that torch ran, by generated file and assigned variable."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[str, GeneratedNode]] = {}

    def record(self, module: torch.fx.GraphModule) -> None:
        """Record the nodes of a graph module; its code is generated once, so that its first call is enough."""
        code = getattr(type(module).forward, "__code__", None)
        if code is None or code.co_filename in self._nodes:
            return
        file = code.co_filename
        self._nodes[file] = {
            node.name: GeneratedNode(file, serial_of(node), tuple(read_module_stack(node)))
            for node in module.graph.nodes
        }

    def find(self, node: torch.fx.Node) -> GeneratedNode | None:
        """Return the node whose generated code was traced to `node`; None for a node from other code."""
        line = generated_line(node)
        return self._nodes.get(line[0], {}).get(line[1]) if line is not None else None
