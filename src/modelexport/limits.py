"""Limits for untrusted files: how large and how deep they may be, and what running them may take."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ReadLimits:
    """What reading a model file accepts; docs/files.md explains each.

    Attributes:
        model_bytes: The size of the ``.onnx`` file; protobuf's own limit is 2 GiB.
        nodes: Nodes in all graphs, subgraphs and functions together, counted before the file is parsed.
        nesting: Subgraphs within subgraphs; protobuf's own limit is about 32.
        expanded_nodes: Nodes after inlining every call of a local function.
        sidecar_bytes: The size of the sidecar.
        linked_data: Whether weights may be in a file with several hard links: such a file can also be one outside
            the model's folder.
    """

    model_bytes: int = 2**31
    nodes: int = 2_000_000
    nesting: int = 32
    expanded_nodes: int = 100_000_000
    sidecar_bytes: int = 2**30
    linked_data: bool = False


@dataclasses.dataclass(frozen=True)
class RunLimits:
    """What the child process that runs an untrusted file may use.

    Attributes:
        seconds: Wall-clock time for each run; None for no limit.
        memory_bytes: Memory; None for no limit. Enforced where the system supports it (not on Windows).
    """

    seconds: float | None = 300.0
    memory_bytes: int | None = 8 * 2**30


DEFAULT_LIMITS = ReadLimits()
DEFAULT_RUN_LIMITS = RunLimits()
NO_RUN_LIMITS = RunLimits(None, None)
