"""The nodes of an exported program, those of its subgraphs included."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from modelexport.hierarchy import CallId


def owning_nodes(module: torch.fx.GraphModule) -> dict[torch.fx.Graph, torch.fx.Node]:
    """Return the node that runs each subgraph: a control-flow body, or a block under `no_grad` or `autocast`."""
    found: dict[torch.fx.Graph, torch.fx.Node] = {}
    pending = [module]
    while pending:
        current = pending.pop()
        for node in current.graph.nodes:
            for source in node.all_input_nodes if node.op == "call_function" else ():
                if source.op != "get_attr":
                    continue
                subgraph = getattr(current, str(source.target), None)
                if isinstance(subgraph, torch.fx.GraphModule):
                    found[subgraph.graph] = node
                    pending.append(subgraph)
    return found


def nodes_in_order(graph: torch.fx.Graph, owning: Mapping[torch.fx.Graph, torch.fx.Node]) -> Iterator[torch.fx.Node]:
    """Yield the nodes of the graph as they run: those of a subgraph before its owning node."""
    subgraphs: dict[torch.fx.Node, list[torch.fx.Graph]] = {}
    for subgraph, node in owning.items():
        subgraphs.setdefault(node, []).append(subgraph)

    def visit(current: torch.fx.Graph) -> Iterator[torch.fx.Node]:
        for node in current.nodes:
            for subgraph in subgraphs.get(node, ()):
                yield from visit(subgraph)
            yield node

    return visit(graph)


def program_graphs(program: torch.export.ExportedProgram) -> Iterator[tuple[str, torch.fx.Graph]]:
    """Yield the graphs of a program with their names; the name of the main graph is empty."""
    for name, module in program.graph_module.named_modules():
        if isinstance(module, torch.fx.GraphModule):
            yield name, module.graph


def format_program(program: torch.export.ExportedProgram, owners: Mapping[torch.fx.Node, CallId]) -> str:
    """Return the FX graphs as text, each node with the call that ran it."""
    lines = []
    for name, graph in program_graphs(program):
        lines.append(f"graph {name or '(main)'}:")
        for node in graph.nodes:
            call = owners.get(node) if node.op == "call_function" else None
            owner = "" if call is None else str(call) or "(root)"
            lines.append(f"  [{owner}] {node.format_node()}")
    return "\n".join(lines) + "\n"
