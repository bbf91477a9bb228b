"""Keys of nodes for matching: nodes of two models with equal keys have the same structure around them."""

from __future__ import annotations

from collections.abc import Sequence

from modelexport.analysis.comparison.model_index import ABSENT, Key, ModelIndex

# In a key: a value that another module call produces, and an omitted input.
OUTSIDE, OMITTED = -1, -2

# A consumer or its key, its input index, and the output index of the producer.
Use = tuple[int, int, int]


class KeyedModel:
    """One of the two models, with keys of its nodes and values. Equal keys have equal numbers in both models.

    Attributes:
        index: The model.
        matches: For each node its match in the other model, or -1.
        table: The numbers of the keys, shared by both models.
        source: A key of each value without a producer.
        source_kind: A key of its kind alone: an input, an argument or a weight.
        group: A key of each node's module call and graph.
        operation: A key of each node's operator.
        kind: A key of each node's operator and attributes.
        output_positions: Where the outputs of a node are outputs of its graph.
    """

    def __init__(self, index: ModelIndex, table: dict[object, int], inputs: dict[int, int], by_call: bool) -> None:
        self.index = index
        self.matches = [-1] * len(index)
        self.table = table
        sources = {**index.sources, **{value: ("input", number) for value, number in inputs.items()}}
        number = self.number
        self.source = {value: number(source) for value, source in sources.items()}
        self.source_kind = {value: number(source[:1]) for value, source in sources.items()}
        calls = index.owners if by_call else [None] * len(index)
        self.group = [number(("group", *key)) for key in zip(calls, index.graph_paths, strict=True)]
        self.operation = [number(operation) for operation in index.operations]
        self.output_positions: dict[int, Key] = {}
        for value, positions in index.output_positions.items():
            node, output = index.producers[value], index.output_indexes[value]
            self.output_positions[node] = (*self.output_positions.get(node, ()), (output, positions))
        self.kind = [
            number((operation, attributes)) if attributes else operation
            for operation, attributes in zip(self.operation, index.attributes, strict=True)
        ]

    def number(self, key: object) -> int:
        """The number of a key, the same in both models."""
        return self.table.setdefault(key, len(self.table))

    def unmatched(self) -> list[int]:
        """The nodes without a match, in topological order."""
        return [node for node in self.index.order if self.matches[node] < 0]

    def upstream(
        self, nodes: Sequence[int], kinds: Sequence[int], groups: Sequence[int], source: dict[int, int]
    ) -> list[int]:
        """For each of the nodes, a key of everything upstream in its group. `nodes` must be complete groups."""
        found = [0] * len(kinds)
        index, table = self.index, self.table
        producers, output_indexes = index.producers, index.output_indexes
        for node in nodes:
            parts: list[object] = [kinds[node], groups[node]]
            for value in index.inputs[node]:
                producer = producers[value] if value != ABSENT else ABSENT
                if producer < 0:
                    parts.append(OMITTED if value == ABSENT else source.get(value, OMITTED))
                elif groups[producer] != groups[node]:
                    parts.append(OUTSIDE)
                elif output_indexes[value]:
                    parts.append((found[producer], output_indexes[value]))
                else:
                    parts.append(found[producer])
            found[node] = table.setdefault(tuple(parts), len(table))
        return found

    def downstream(self, nodes: Sequence[int], own: Sequence[int], groups: Sequence[int]) -> list[int]:
        """For each of the nodes, a key of it and all downstream in its group. `nodes` must be complete groups."""
        found = [0] * len(own)
        index, table = self.index, self.table
        for node in reversed(nodes):
            inside: list[Use] = []
            outside = False
            for consumer, slot, output in index.consumers[node]:
                if groups[consumer] == groups[node]:
                    inside.append((found[consumer], slot, output))
                else:
                    outside = True
            if len(inside) > 1:
                inside.sort()
            key = (own[node], groups[node], outside, tuple(inside), self.output_positions.get(node))
            found[node] = table.setdefault(key, len(table))
        return found

    def local(self, nodes: Sequence[int], kinds: Sequence[int], source: dict[int, int]) -> list[int]:
        """For each of the nodes, a key of its kind and of the weights and arguments that it consumes."""
        found = [0] * len(kinds)
        inputs, sources = self.index.inputs, self.index.sources
        for node in nodes:
            values = [OMITTED if v == ABSENT else source[v] if v in sources else OUTSIDE for v in inputs[node]]
            found[node] = self.number((kinds[node], *values))
        return found
