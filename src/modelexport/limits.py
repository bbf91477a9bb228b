"""Limits for untrusted files: their size and depth, and the time and memory of running them."""

from __future__ import annotations

import dataclasses

from modelexport.errors import InputError


@dataclasses.dataclass(frozen=True)
class ReadLimits:
    """Limits of reading a model file; docs/files.md explains each.

    Attributes:
        model_bytes: The size of the ``.onnx`` file; protobuf's own limit is 2 GiB.
        nodes: Nodes in all graphs, subgraphs and functions together, counted before the file is parsed.
        nesting: Subgraphs within subgraphs; protobuf's own limit is about 32.
        expanded_nodes: Nodes after inlining every call of a local function.
        sidecar_bytes: The size of the sidecar.
        seconds: Wall-clock time for a function or command to read files, and all it computes from them; `math.inf` for
            no limit. By default the environment variable MODELEXPORT_READ_SECONDS, or 600.
        linked_data: Whether weights may be in a file with several hard links: such a file can also be one outside
            the model's folder.
    """

    model_bytes: int = 2**31
    nodes: int = 500_000
    nesting: int = 32
    expanded_nodes: int = 100_000_000
    sidecar_bytes: int = 2**30
    linked_data: bool = False
    seconds: float | None = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None or field.name != "seconds":
                _check(field.name, getattr(self, field.name), least=0)


@dataclasses.dataclass(frozen=True)
class RunLimits:
    """Limits of running a file in onnxruntime; docs/files.md explains them.

    Attributes:
        seconds: Wall-clock time for each run of a graph; None for no limit.
        memory_bytes: Memory of the process that runs it, mapped weights included; None for no limit. Enforced where
            the system can (not on Windows).

    Raises:
        InputError: A limit is not a positive number.
    """

    seconds: float | None = 300.0
    memory_bytes: int | None = 8 * 2**30

    def __post_init__(self) -> None:
        for name, value in (("seconds", self.seconds), ("memory_bytes", self.memory_bytes)):
            if value is not None:
                _check(name, value, least=1e-9)


def _check(name: str, value: object, least: float) -> None:
    if not isinstance(value, int | float) or not value >= least:
        raise InputError(f"{name} is {value!r}: a limit is a positive number, or None for no limit")


DEFAULT_LIMITS = ReadLimits()
DEFAULT_RUN_LIMITS = RunLimits()
NO_RUN_LIMITS = RunLimits(None, None)
