"""select: the nodes that a selector picks, with their ONNX names for quantizers and mixed-precision tools."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, Literal

import msgspec
import onnx

from modelexport.analysis.query.selector_eval import parse_selector
from modelexport.deadline import reads_files
from modelexport.display import Summary, summarized
from modelexport.errors import InputError
from modelexport.hierarchy import json_schema
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage import find_hierarchy, read_model

# An error lists at most this many nodes.
_MAX_LISTED = 3


class SelectedNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A selected node.

    Attributes:
        id: Its id: its first output, prefixed with the path to its graph.
        name: Its ONNX name; empty if it has none.
        op: Its operator.
        module: The call that owns it.
        tag: The tag of its owner.
        kind: The kind of attribution.
        through: Whether its owner was selected, or only a contributor.
        shares_name: Whether a node that was not selected has the same name.
        contributors: The calls that contributed to it.
        nested: Whether it is in a subgraph or a function, not in the main graph.
    """

    id: str
    name: str
    op: str
    module: str
    tag: str
    kind: str
    through: Literal["owner", "contributor"]
    shares_name: bool = False
    contributors: tuple[str, ...] = ()
    nested: bool = False


def _summary(selection: Selection) -> Summary:
    facts = {
        "file": selection.file,
        "selector": selection.selector,
        "nodes": len(selection.nodes),
        "all_nodes": selection.all_nodes,
    }
    rows = [(node.name or node.id, node.op, node.module or "(root)", node.kind) for node in selection.nodes]
    return Summary(facts, ("node", "operation", "module", "kind"), rows)


@summarized(_summary)
class Selection(msgspec.Struct, frozen=True):
    """The nodes of a file that a selector picks.

    Attributes:
        file: The file.
        origin: The source of its hierarchy.
        selector: The selector.
        contributors: Whether a node also belongs to its contributors.
        nodes: The nodes, in graph order.
        all_nodes: The number of nodes in the file.
        unmatched: Terms of the selector that match nothing in the file.
        schema_version: The version of this format.
    """

    file: str
    origin: str
    selector: str
    contributors: bool
    nodes: tuple[SelectedNode, ...]
    all_nodes: int
    unmatched: tuple[str, ...]
    schema_version: int = 1

    def names(self, *, nested: bool = True) -> list[str]:
        """The ONNX names of the nodes, each once, for other tools.

        Args:
            nested: Whether to include nodes of subgraphs and functions, whose names some tools reject.

        Raises:
            InputError: A node has no name, or shares it with a node that was not selected; or no node is left.
        """
        nodes = [node for node in self.nodes if nested or not node.nested]
        if not nodes:
            raise InputError(
                f"all {len(self.nodes)} nodes are in subgraphs or functions ({_some(list(self.nodes))}), which this "
                "tool does not support: select nodes of the main graph too, or use another format"
            )
        unnamed = [node for node in nodes if not node.name]
        if unnamed:
            raise InputError(
                f"{len(unnamed)} of the {len(nodes)} nodes have no name ({_some(unnamed)}), which other tools "
                "need: name the nodes of the model first, or use --format json, which has node ids"
            )
        shared = [node for node in nodes if node.shares_name]
        if shared:
            raise InputError(
                f"{len(shared)} of the {len(nodes)} nodes share their name with nodes that were not selected "
                f"({_some(shared)}), and a tool would use both: give the nodes of the model unique names first"
            )
        return list(dict.fromkeys(node.name for node in nodes))


def _some(nodes: list[SelectedNode]) -> str:
    shown = ", ".join(f"{node.op} {node.name or node.id!r}" for node in nodes[:_MAX_LISTED])
    return shown + (", …" if len(nodes) > _MAX_LISTED else "")


@reads_files()
def select(
    path: str | Path, pattern: str, *, contributors: bool = True, limits: ReadLimits = DEFAULT_LIMITS
) -> Selection:
    """The nodes of a file that a selector picks (docs/selectors.md).

    Args:
        path: The file.
        pattern: The selector.
        contributors: Whether a node also belongs to its contributors, or only to its owner.
        limits: The limits for reading files.

    Raises:
        InputError: The file does not exist, or the selector picks nothing.
        FileFormatError: It is not an ONNX model, or has no hierarchy.
    """
    selector = parse_selector(pattern)
    file = read_model(path, limits)
    found = find_hierarchy(file)
    picked = selector.nodes(found.document, contributors=contributors)
    owned = selector.owned(found.document) if contributors else picked
    names = {identity: node.name for identity, node in file.nodes}
    unselected = Counter(names.values())
    unselected.subtract(names[node.id] for node in picked)
    owned_ids = {node.id for node in owned}
    nested = {identity for identity, node in file.nodes if _is_nested(identity, node)}
    return Selection(
        file=str(file.path),
        origin=found.origin,
        selector=pattern,
        contributors=contributors,
        nodes=tuple(
            SelectedNode(
                id=node.id,
                name=names[node.id],
                op=node.op,
                module=node.module,
                tag=node.tag,
                kind=node.kind,
                through="owner" if node.id in owned_ids else "contributor",
                shares_name=bool(names[node.id]) and unselected[names[node.id]] > 0,
                contributors=node.contributors,
                nested=node.id in nested,
            )
            for node in picked
        ),
        all_nodes=len(found.document.nodes),
        unmatched=selector.unmatched(found.document),
    )


def _is_nested(identity: str, node: onnx.NodeProto) -> bool:
    """Whether the id of a node has the path to a subgraph or function before the name of its first output."""
    own = next((name for name in node.output if name), "")
    return identity != own and not identity.startswith(f"{own}#")


def selection_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport select --format json``."""
    return json_schema("modelexport selection", Selection)
