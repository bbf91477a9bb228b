"""The nodes that a selector picks, by the names that quantizers and mixed-precision tools ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import onnx

from modelexport.analysis.query.selectors import parse
from modelexport.display import Summary, summarized
from modelexport.errors import InputError
from modelexport.hierarchy import NodeRecord, json_schema
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage import find_hierarchy, read_model

# How many of several culprits an error names.
_NAMED = 3


class SelectedNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node that was picked.

    Attributes:
        id: Its identity: its first output, behind the way to its graph.
        name: Its ONNX name; empty where it has none.
        op: Its operation.
        module: The call it belongs to.
        tag: That call's tag.
        kind: How that is known.
        through: Whether its owner was picked, or only a call that contributed to it.
        shares_name: Whether a node that was not picked has the same name.
        contributors: The calls that contributed to it.
        nested: Whether it lies in a body or a function, and not in the main graph.
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
    """What a selector picked in a file.

    Attributes:
        file: The file.
        origin: What its hierarchy was read from.
        selector: The selector.
        contributors: Whether nodes count for the calls that contributed to them as well.
        nodes: The nodes, in graph order.
        all_nodes: How many the file has.
        unmatched: Terms of the selector that nothing in the file fits.
        schema_version: The version of this form.
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
        """The ONNX names of the nodes, each once: what other tools know nodes by.

        Args:
            nested: Whether nodes in bodies and functions are meant too: some tools know none, and refuse their names.

        Raises:
            InputError: A node has no name, or shares it with one that was not picked: a tool could not tell. Or none
                is left.
        """
        nodes = [node for node in self.nodes if nested or not node.nested]
        if not nodes:
            raise InputError(
                f"all of the {len(self.nodes)} nodes lie in bodies or functions ({_some(list(self.nodes))}), of which "
                "this tool knows nothing: pick nodes of the main graph too, or use another format"
            )
        unnamed = [node for node in nodes if not node.name]
        if unnamed:
            raise InputError(
                f"{len(unnamed)} of the {len(nodes)} nodes have no name ({_some(unnamed)}), and tools know nodes "
                "by nothing else: give the nodes of the model names first, or use --format json, which has identities"
            )
        shared = [node for node in nodes if node.shares_name]
        if shared:
            raise InputError(
                f"{len(shared)} of the {len(nodes)} nodes share their name with nodes that were not picked "
                f"({_some(shared)}), and a tool would take both: give the nodes of the model names of their own first"
            )
        return list(dict.fromkeys(node.name for node in nodes))


def _some(nodes: list[SelectedNode]) -> str:
    shown = ", ".join(f"{node.op} {node.name or node.id!r}" for node in nodes[:_NAMED])
    return shown + (", …" if len(nodes) > _NAMED else "")


def select(
    path: str | Path, pattern: str, *, contributors: bool = True, limits: ReadLimits = DEFAULT_LIMITS
) -> Selection:
    """The nodes of a file that a selector picks (docs/selectors.md).

    Args:
        path: The file.
        pattern: The selector.
        contributors: Whether a node counts for each call that contributed to it, or for its owner alone.
        limits: How large and how deep a file is accepted.

    Raises:
        InputError: There is no such file, or the selector picks nothing.
        FileFormatError: It is not an ONNX model, or nothing in it speaks of modules.
    """
    selector = parse(pattern)
    file = read_model(path, limits)
    found = find_hierarchy(file)
    picked = selector.nodes(found.document, contributors=contributors)
    owned = picked
    if contributors:
        owned = selector.owned(found.document)
    names = {identity: node.name for identity, node in file.nodes}
    elsewhere = Counter(names.values())
    elsewhere.subtract(names[node.id] for node in picked)
    owned_ids = {node.id for node in owned}
    nested = {identity for identity, node in file.nodes if _is_nested(identity, node)}
    return Selection(
        file=str(file.path),
        origin=found.origin,
        selector=pattern,
        contributors=contributors,
        nodes=tuple(
            _selected(node, names, elsewhere, owned=node.id in owned_ids, nested=node.id in nested) for node in picked
        ),
        all_nodes=len(found.document.nodes),
        unmatched=selector.unmatched(found.document),
    )


def _is_nested(identity: str, node: onnx.NodeProto) -> bool:
    """Whether the identity tells a way to the node's graph before what the node makes."""
    own = next((name for name in node.output if name), "")
    return identity != own and not identity.startswith(f"{own}#")


def _selected(
    node: NodeRecord, names: Mapping[str, str], elsewhere: Counter[str], *, owned: bool, nested: bool
) -> SelectedNode:
    name = names[node.id]
    return SelectedNode(
        id=node.id,
        name=name,
        op=node.op,
        module=node.module,
        tag=node.tag,
        kind=node.kind,
        through="owner" if owned else "contributor",
        shares_name=bool(name) and elsewhere[name] > 0,
        contributors=node.contributors,
        nested=nested,
    )


def selection_schema() -> dict[str, Any]:
    """The JSON Schema of what ``modelexport select --format json`` prints."""
    return json_schema("modelexport selection", Selection)
