"""Read a profile of TensorRT's trtexec: times of layers (`--exportProfile`), their ONNX nodes (`--exportLayerInfo`).

With `--profilingVerbosity=detailed` when the engine was built, each layer has `Metadata`: ``[ONNX Layer: a]`` for each
node, separated by one of the control characters 0x1e and 0x1f. Without it, the names of layers are all there is:
``conv1 + relu1``, ``PWN(gelu)``, ``Reformatting CopyNode for Input Tensor 0 to conv1 + relu1``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from modelexport.display import counted
from modelexport.errors import FileFormatError
from modelexport.profiling.imported.limited_file import read_limited
from modelexport.profiling.imported.node_names import Layer, NodeNames, measured
from modelexport.profiling.records import Measurement

_NODE = "[ONNX Layer: "
_SEPARATORS = "\x1e\x1f"
_PARTS = re.compile(r" \+ | to |\.\.\.|[\[\]{}(), ]+")
_MILLISECOND = 1e-3
_HOW = "trtexec writes it with --exportProfile, and what each layer is with --exportLayerInfo"


class _Time(msgspec.Struct):
    """An entry of a profile: the number of runs, or a layer with its mean time."""

    count: int | None = None
    name: str | None = None
    average: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = msgspec.field(name="averageMs", default=0.0)


class _Tensor(msgspec.Struct):
    name: str = msgspec.field(name="Name", default="")


class _LayerInfo(msgspec.Struct):
    name: str = msgspec.field(name="Name")
    op: str = msgspec.field(name="LayerType", default="")
    inputs: list[_Tensor] = msgspec.field(name="Inputs", default_factory=list)
    outputs: list[_Tensor] = msgspec.field(name="Outputs", default_factory=list)
    metadata: str = msgspec.field(name="Metadata", default="")


class _Engine(msgspec.Struct):
    """What `--exportLayerInfo` writes; layers are only names if the engine was built without details."""

    layers: list[_LayerInfo | str] = msgspec.field(name="Layers")


def read_tensorrt(paths: Sequence[Path], names: NodeNames) -> Measurement:
    """Read a profile of trtexec.

    Args:
        paths: The file of `--exportProfile`, and that of `--exportLayerInfo` in any order; the second may be missing.
        names: The nodes of the file that the engine was built from.

    Raises:
        FileFormatError: A file is not one of trtexec, there are no times, or they are of another file.
    """
    times: list[_Time] = []
    infos: list[_LayerInfo] = []
    where = paths[0]
    for path in paths:
        content = read_limited(path)
        try:
            if content.lstrip()[:1] == b"[":
                times, where = msgspec.json.decode(content, type=list[_Time]), path
            else:
                engine = msgspec.json.decode(content, type=_Engine)
                infos = [info if isinstance(info, _LayerInfo) else _LayerInfo(info) for info in engine.layers]
        except (msgspec.MsgspecError, RecursionError) as error:
            raise FileFormatError(f"{path} is not a profile of TensorRT ({error}): {_HOW}") from error
    timed = [entry for entry in times if entry.name is not None]
    if not timed:
        raise FileFormatError(f"{where} has no times of layers: {_HOW}; give both, as trt:profile.json,layers.json")
    return _joined(timed, infos, sum(entry.count or 0 for entry in times), names, where)


def _joined(
    times: Sequence[_Time], infos: Sequence[_LayerInfo], runs: int, names: NodeNames, where: Path
) -> Measurement:
    known = {info.name: info for info in infos}
    found = [known.get(entry.name or "") or _LayerInfo(entry.name or "") for entry in times]
    consumers: dict[str, list[int]] = {}
    for position, info in enumerate(found):
        for tensor in info.inputs:
            consumers.setdefault(tensor.name, []).append(position)
    layers = [
        Layer(
            name=info.name,
            op=info.op,
            seconds=entry.average * _MILLISECOND,
            nodes=_nodes(info, names),
            consumers=[position for tensor in info.outputs for position in consumers.get(tensor.name, ())],
        )
        for entry, info in zip(times, found, strict=True)
    ]
    note = f"times are means of {counted(runs, 'run')} of trtexec; the time outside of layers is not known"
    runtime = "TensorRT (trtexec)"
    return measured(layers, range(len(layers)), names, runtime=runtime, where=where, note=note)


def _nodes(info: _LayerInfo, names: NodeNames) -> tuple[str, ...]:
    """The ONNX nodes in the metadata of a layer; without metadata, those in its name."""
    # Not a regular expression: the text is untrusted, and this takes linear time.
    parts = info.metadata.split(_NODE)[1:]
    if parts:
        return tuple(part.rstrip(f"{_SEPARATORS} ").removesuffix("]") for part in parts)
    if names.find(info.name) is not None:
        return (info.name,)
    return tuple(part for part in _PARTS.split(info.name) if names.find(part) is not None)
