"""The graph JSON and the node data of Google's Model Explorer: modules are groups, overlays are node data.

The format is that of `graph_builder.py` and `node_data_builder.py` of ai-edge-model-explorer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from modelexport.viewing.page_data import KINDS, NONE, Overlay, PageData

_WEIGHT = 2
# Group names are separated by slashes, and several namespaces by semicolons.
_ESCAPES = str.maketrans({"/": "%2F", ";": "%3B"})
# From pale to dark of one colour, which people who are colour-blind see too.
_GRADIENT = ({"stop": 0, "bgColor": "#f1f5fb"}, {"stop": 1, "bgColor": "#5b8ad6"})
Json = dict[str, Any]


def as_model_explorer(data: PageData) -> str:
    """The graphs of a file: the main graph, subgraphs and local functions."""
    return msgspec.json.encode(_Graphs(data).collection()).decode()


def model_explorer_node_data(data: PageData) -> dict[str, str]:
    """A file of node data for each overlay that has values of nodes, by the id of the overlay."""
    graphs = _Graphs(data)
    return {
        overlay.id: msgspec.json.encode(graphs.node_data(overlay)).decode()
        for overlay in data.overlays
        if overlay.nodes is not None
    }


class _Graphs:
    def __init__(self, data: PageData) -> None:
        self._data = data
        self._namespaces = self._read_namespaces()
        self._members: list[list[int]] = [[] for _ in data.graphs]
        for node, around in enumerate(data.nodes.graph):
            self._members[around].append(node)
        self._subgraphs: dict[int, list[int]] = {}
        for number, graph in enumerate(data.graphs):
            if graph.owner != NONE:
                self._subgraphs.setdefault(graph.owner, []).append(number)
        for node, number in data.nodes.function.items():
            self._subgraphs.setdefault(node, []).append(number)

    def collection(self) -> Json:
        """All graphs under the name of the file."""
        return {"label": self._data.file, "graphs": [self._graph(number) for number in range(len(self._members))]}

    def node_data(self, overlay: Overlay) -> Json:
        """The values of an overlay by graph and node; those of a scale of categories are texts."""
        nodes = self._data.nodes
        category = overlay.scale == "category"

        def value(node: int) -> float | str | None:
            found = overlay.nodes[node] if overlay.nodes is not None else None
            return overlay.categories[int(found)] if category and found is not None else found

        def results(members: list[int]) -> Json:
            known = ((node, value(node)) for node in members)
            return {self._text(nodes.id[node]): {"value": found} for node, found in known if found is not None}

        style = {} if category else {"gradient": _GRADIENT}
        return {
            self._graph_id(number): {"name": overlay.title, "results": results(members), **style}
            for number, members in enumerate(self._members)
            if members
        }

    def _text(self, position: int) -> str:
        return self._data.strings[position]

    def _graph_id(self, number: int) -> str:
        """A unique name: that of the graph, or where a subgraph is."""
        graph = self._data.graphs[number]
        if graph.owner != NONE:
            return f"{self._text(self._data.nodes.id[graph.owner])}/{graph.attribute}"
        return graph.function or (graph.name if graph.name and number == 0 else f"graph {number}")

    def _read_namespaces(self) -> list[str]:
        """The groups around the nodes of each call: its callers and itself, without the root."""
        data, found = self._data, [""] * len(self._data.calls.id)
        for call in range(1, len(found)):
            chain = []
            current = call
            while data.calls.parent[current] != NONE:
                chain.append(self._segment(current))
                current = data.calls.parent[current]
            found[call] = "/".join(reversed(chain))
        return found

    def _segment(self, call: int) -> str:
        data = self._data
        around = self._text(data.modules.path[data.calls.module[data.calls.parent[call]]])
        name = self._text(data.calls.id[call]).removeprefix(f"{around}." if around else "")
        kind = self._text(data.modules.class_name[data.calls.module[call]])
        return f"{name} ({kind})".translate(_ESCAPES)

    def _graph(self, number: int) -> Json:
        data, graph = self._data, self._data.graphs[number]
        sources: dict[int, tuple[str, str]] = {}
        nodes: list[Json] = []
        for tensor in graph.inputs:
            name = f"input {self._text(data.tensors.name[tensor])}"
            sources[tensor] = (name, "0")
            nodes.append({"id": name, "label": name, "namespace": "", "outputsMetadata": [self._metadata(0, tensor)]})
        for node in self._members[number]:
            node_id = self._text(data.nodes.id[node])
            sources.update((t, (node_id, str(slot))) for slot, t in enumerate(data.nodes.outputs[node]) if t != NONE)
        nodes += [self._node(node, sources) for node in self._members[number]]
        for tensor in graph.outputs:
            if tensor in sources:
                name = f"output {self._text(data.tensors.name[tensor])}"
                edges = [self._edge(sources[tensor], 0)]
                nodes.append({"id": name, "label": name, "namespace": "", "incomingEdges": edges})
        return {"id": self._graph_id(number), "nodes": nodes, "groupNodeAttributes": self._group_attributes(number)}

    def _node(self, node: int, sources: dict[int, tuple[str, str]]) -> Json:
        data, nodes = self._data, self._data.nodes
        attributes = [
            {"key": self._text(name), "value": self._text(value)}
            for name, value in zip(nodes.attributes[node][::2], nodes.attributes[node][1::2], strict=True)
        ]
        attributes += [
            {"key": f"input {slot}", "value": f"{self._text(data.tensors.name[tensor])} {self._type(tensor)}"}
            for slot, tensor in enumerate(nodes.inputs[node])
            if tensor != NONE and data.tensors.source[tensor] == _WEIGHT
        ]
        owner = {
            "module": self._text(data.calls.id[nodes.call[node]]) or "(root)",
            "kind": KINDS[nodes.kind[node]],
            "confidence": f"{nodes.confidence[node]:g}",
            "reason": self._text(nodes.reason[node]),
            "source": self._text(nodes.source[node]),
        }
        found: Json = {
            "id": self._text(nodes.id[node]),
            "label": self._text(nodes.op[node]),
            "namespace": self._namespaces[nodes.call[node]],
            "attrs": [*attributes, *({"key": key, "value": text} for key, text in owner.items() if text)],
            "incomingEdges": [
                self._edge(sources[tensor], slot) for slot, tensor in enumerate(nodes.inputs[node]) if tensor in sources
            ],
            "outputsMetadata": [self._metadata(slot, t) for slot, t in enumerate(nodes.outputs[node]) if t != NONE],
        }
        if node in self._subgraphs:
            found["subgraphIds"] = [self._graph_id(number) for number in self._subgraphs[node]]
        return found

    def _edge(self, source: tuple[str, str], slot: int) -> Json:
        return {"sourceNodeId": source[0], "sourceNodeOutputId": source[1], "targetNodeInputId": str(slot)}

    def _metadata(self, slot: int, tensor: int) -> Json:
        pairs = {"tensor_name": self._text(self._data.tensors.name[tensor]), "tensor_shape": self._type(tensor)}
        return {"id": str(slot), "attrs": [{"key": key, "value": text} for key, text in pairs.items() if text]}

    def _type(self, tensor: int) -> str:
        tensors = self._data.tensors
        dtype, shape = self._text(tensors.dtype[tensor]), self._text(tensors.shape[tensor])
        return f"{dtype}[{shape.replace(' x ', ',')}]" if shape else dtype

    def _group_attributes(self, number: int) -> dict[str, dict[str, str]]:
        """What the side panel shows of a group: its module, and the values of overlays."""
        data = self._data
        owners = {data.nodes.call[node] for node in self._members[number]}
        shown: set[int] = set()
        for call in owners:
            while call > 0 and call not in shown:
                shown.add(call)
                call = data.calls.parent[call]
        return {self._namespaces[call]: self._call_attributes(call) for call in sorted(shown)}

    def _call_attributes(self, call: int) -> dict[str, str]:
        data, module = self._data, self._data.calls.module[call]
        found = {
            "module": self._text(data.calls.id[call]),
            "class": self._text(data.modules.qualified_class[module]),
            "tag": self._text(data.calls.tag[call]),
            "nodes": f"{data.calls.nodes[call]:,}",
            "parameters": f"{data.modules.parameters_total[module]:,}",
        }
        for overlay in data.overlays:
            value = (overlay.totals or overlay.calls)[call]
            if value is not None:
                text = overlay.categories[int(value)] if overlay.scale == "category" else f"{value:g} {overlay.unit}"
                found[overlay.title] = text.strip()
        return found
