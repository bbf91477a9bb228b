"""Serial numbers of FX nodes: they lead from a decomposed node to the node it was decomposed from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch

# torch copies `meta["custom"]` from a node to the nodes it is decomposed into, and writes none of it to ONNX.
_CUSTOM = "custom"
_SERIAL = "modelexport.serial"


def serial_of(node: torch.fx.Node) -> int | None:
    """Return the serial number of `node`, which may be that of the node it was decomposed from."""
    custom = node.meta.get(_CUSTOM)
    serial = custom.get(_SERIAL) if isinstance(custom, dict) else None
    return serial if isinstance(serial, int) else None


def set_serial(node: torch.fx.Node, serial: int) -> None:
    """Give a node its serial number."""
    node.meta[_CUSTOM] = {**node.meta.get(_CUSTOM, {}), _SERIAL: serial}


@contextlib.contextmanager
def serials_removed(nodes: Iterable[torch.fx.Node]) -> Iterator[None]:
    """Remove the serial numbers that the nodes get within the context, at its end."""
    saved = [(node, node.meta.get(_CUSTOM)) for node in nodes]
    try:
        yield
    finally:
        for node, custom in saved:
            if custom is None:
                node.meta.pop(_CUSTOM, None)
            else:
                node.meta[_CUSTOM] = custom
