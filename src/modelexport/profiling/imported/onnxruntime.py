"""Read a profile that onnxruntime wrote elsewhere, and find the graph that it executed.

Names in the profile are those of the optimized graph. That graph is either given (`optimized_model_filepath` of the
same session), or onnxruntime optimizes the file again here: with the same release and the same level it gives the same
names.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import onnx_ir as ir

from modelexport.analysis.retagging import project_owners
from modelexport.display import counted
from modelexport.errors import FileFormatError, InputError, OnnxRunError
from modelexport.hierarchy import HierarchyDocument
from modelexport.limits import RunLimits
from modelexport.ort import OPTIMIZATION_LEVELS, ProfiledSession
from modelexport.profiling.imported.node_names import NodeNames, check_same_file
from modelexport.profiling.ort_profile import OrtProfile, read_ort_profile
from modelexport.profiling.owners import UNMATCHED, own_by_graph, own_by_sources
from modelexport.profiling.records import Measurement, OwnedKernel
from modelexport.storage import LoadedModel, ModelFile

_CPU = "CPUExecutionProvider"
_GIVE_GRAPH = (
    "for exact owners, give the graph that optimized_model_filepath saved in the same session: "
    "ort:profile.json,optimized.onnx"
)


def read_onnxruntime(
    paths: Sequence[Path], file: LoadedModel, document: HierarchyDocument, limits: RunLimits
) -> tuple[Measurement, tuple[OwnedKernel, ...]]:
    """Read a profile of onnxruntime, with the owner of each kernel.

    Args:
        paths: The profile, and the executed graph if it is known.
        file: The profiled file.
        document: Its hierarchy.
        limits: The limits of loading the file in onnxruntime.

    Raises:
        FileFormatError: It is not a profile of onnxruntime, or is one of another file.
    """
    path = paths[0]
    profile = read_ort_profile(path)
    measurement = profile.measurement
    best: tuple[OwnedKernel, ...] = ()
    graphs = iter([ModelFile(paths[1], weights=True).model]) if len(paths) > 1 else _graphs(profile, file, limits)
    for executed in graphs:
        found = own_by_graph(profile, executed, project_owners(file.model, document, executed))
        if not best or _unmatched(found) < _unmatched(best):
            best = found
        if not _unmatched(best):
            break
    notes = list(measurement.notes)
    if not best or 2 * _unmatched(best) > len(best):
        best = _by_names(path, measurement, file, document)
        notes.append(f"kernels are found by their names only: {_GIVE_GRAPH}")
    elif _unmatched(best):
        notes.append(
            f"{counted(_unmatched(best), 'kernel')} not in the graph that onnxruntime makes of the file here: its "
            f"release or its options differ; {_GIVE_GRAPH}"
        )
    return msgspec.structs.replace(measurement, notes=tuple(notes)), best


def _graphs(profile: OrtProfile, file: LoadedModel, limits: RunLimits) -> Iterator[ir.Model]:
    """The graphs that onnxruntime makes of the file, at each level of optimization."""
    providers = {kernel.provider: None for kernel in profile.measurement.kernels if kernel.provider}
    wanted = [provider for provider in providers if provider != _CPU]
    for level in OPTIMIZATION_LEVELS:
        with tempfile.TemporaryDirectory(prefix="modelexport-") as folder:
            session = ProfiledSession(file.path, Path(folder), providers=wanted, optimization=level, limits=limits)
            try:
                with session:
                    session.load({})
                executed = ModelFile(session.executed, weights=True).model
            except (FileFormatError, InputError, OnnxRunError):
                # A provider that is not here, for example: names have to do.
                return
            yield executed


def _by_names(
    path: Path, measurement: Measurement, file: LoadedModel, document: HierarchyDocument
) -> tuple[OwnedKernel, ...]:
    names = NodeNames(file)
    kernels = [
        msgspec.structs.replace(kernel, sources=names.sources([kernel.name.removeprefix("fused ")]))
        for kernel in measurement.kernels
    ]
    check_same_file(path, len(kernels), [kernel.name for kernel in kernels if not kernel.sources])
    return own_by_sources(document, kernels)


def _unmatched(kernels: Sequence[OwnedKernel]) -> int:
    return sum(kernel.kind == UNMATCHED for kernel in kernels)
