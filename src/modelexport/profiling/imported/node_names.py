"""Find the nodes of a file behind the names that a runtime gives to its layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from modelexport.display import counted, printable, shortened
from modelexport.errors import FileFormatError
from modelexport.profiling.records import Kernel, Measurement
from modelexport.storage import ModelFile

# Runtimes append the step of a decomposition to the name of a node: "conv1/WithoutBiases", "fc/MatMulAddFusion".
_MOST_SUFFIXES = 2
# A layer that names no node is what the runtime inserted before another: how far to look for that one.
_MOST_STEPS = 8
_MOST_NAME_CHARACTERS = 80


class NodeNames:
    """The nodes of a file by name and by output.

    Args:
        file: The file.
    """

    def __init__(self, file: ModelFile) -> None:
        self._positions = {node_id: position for position, (node_id, _) in enumerate(file.nodes)}
        self._ids: dict[str, str] = {}
        for node_id, node in file.nodes:
            if node.name:
                self._ids.setdefault(node.name, node_id)
        # Node names are optional: a runtime then uses the name of the result.
        for node_id, node in file.nodes:
            for name in node.output:
                if name:
                    self._ids.setdefault(name, node_id)

    def find(self, name: str) -> str | None:
        """The id of the node with this name, or of the one whose name it continues, or None."""
        for _ in range(_MOST_SUFFIXES + 1):
            if name in self._ids:
                return self._ids[name]
            name = name.rpartition("/")[0]
        return None

    def sources(self, names: Iterable[str]) -> tuple[str, ...]:
        """The ids of the nodes with these names, in the order of the graph."""
        found = {node_id for name in names if (node_id := self.find(name)) is not None}
        return tuple(sorted(found, key=self._positions.__getitem__))


@dataclasses.dataclass(frozen=True)
class Layer:
    """A layer as a runtime measured it.

    Attributes:
        name: Its name in the runtime.
        op: What it computes, in the runtime's words.
        seconds: Its time in one run.
        nodes: The names of the ONNX nodes that it says it executes.
        consumers: The positions of the layers that consume its outputs.
    """

    name: str
    op: str
    seconds: float
    nodes: tuple[str, ...]
    consumers: Sequence[int] = ()


def measured(
    layers: Sequence[Layer], executed: Iterable[int], names: NodeNames, *, runtime: str, where: Path, note: str
) -> Measurement:
    """The measurement of layers, each with the nodes of the file that it executes.

    A layer that names no node is counted with the nearest layer behind it that names one: runtimes insert copies and
    changes of layout before the layer that needs them.

    Args:
        layers: All layers.
        executed: The positions of those that have a time, in the order of execution.
        names: The nodes of the file.
        runtime: The name of the runtime.
        where: The profile, for errors.
        note: What the user should know of the times.

    Raises:
        FileFormatError: Most of the named nodes are not in the file.
    """
    chosen = list(executed)
    named = {name for position in chosen for name in layers[position].nodes}
    missing = sorted(name for name in named if names.find(name) is None)
    check_same_file(where, len(named), missing)
    sources = {position: names.sources(layers[position].nodes) for position in chosen}
    kernels = tuple(
        Kernel(
            name=layers[position].name,
            op=layers[position].op,
            provider="",
            seconds=(layers[position].seconds,),
            sources=sources[position] or _following(position, layers, names),
        )
        for position in chosen
    )
    notes = [note]
    if missing:
        notes.append(f"{counted(len(missing), 'name')} in the profile that the file does not have: {_shown(missing)}")
    session = sum(kernel.seconds[0] for kernel in kernels)
    return Measurement(runtime=runtime, kernels=kernels, session=(session,), notes=tuple(notes))


def check_same_file(where: Path, named: int, missing: Sequence[str]) -> None:
    """Check that a profile is of this file.

    Args:
        where: The profile.
        named: How many nodes it names.
        missing: Those that the file does not have.

    Raises:
        FileFormatError: It names none, or most are missing.
    """
    if not named:
        raise FileFormatError(f"{where} names no ONNX node: it is not known which module a layer belongs to")
    if 2 * len(missing) > named:
        raise FileFormatError(
            f"{where} is a profile of another file: {len(missing):,} of the {counted(named, 'node')} that it names are "
            f"not in this one ({_shown(missing)}); profile the file from which the runtime's model was made"
        )


def _following(start: int, layers: Sequence[Layer], names: NodeNames) -> tuple[str, ...]:
    reached = {start}
    front = [start]
    for _ in range(_MOST_STEPS):
        front = [consumer for position in front for consumer in layers[position].consumers if consumer not in reached]
        reached.update(front)
        for position in front:
            found = names.sources(layers[position].nodes)
            if found:
                return found
    return ()


def _shown(names: Sequence[str]) -> str:
    first = [shortened(printable(name), _MOST_NAME_CHARACTERS) for name in names[:3]]
    return ", ".join([*first, *(["..."] if len(names) > len(first) else [])])
