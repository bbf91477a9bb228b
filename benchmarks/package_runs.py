"""Export a model of another package with `dynamic="auto"` and by plain torch, and run the files at other sizes.

What judges a file here shares nothing with the package: the graph is read with onnx and run with onnxruntime, and its
outputs are compared by position with the tensors of PyTorch's result. Every step is a process of its own.
"""

from __future__ import annotations

import inspect
import resource
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
import torch
from benchmarks.output_difference import difference
from benchmarks.package_model import PackageModel
from benchmarks.package_models import find_model
from benchmarks.package_verdicts import is_outside, is_right, stated_ranges
from benchmarks.quiet import quiet
from benchmarks.sweep_process import attempted, describe, run_limited
from torch.utils import _pytree as pytree

import modelexport

# A step allocates no more than this.
_MEMORY = 6 * 2**30

Json = dict[str, Any]
# Sizes by axis: the position of the input among the tensors, and the number of the axis.
_Symbols = dict[tuple[int, int], str]


def prepare() -> None:
    """Import the libraries, before processes are forked."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    torch.set_num_threads(1)
    # What every export does first.
    ONNXRegistry.from_torchlib()


def measure(payload: Any) -> Json:
    """All that there is to say of one model: what each exporter makes of it, and how its files run."""
    spec = find_model(payload["name"])
    return attempted(lambda: _measure(spec, payload["seconds"]))


def _measure(spec: PackageModel, seconds: int) -> Json:
    record: Json = {"name": str(spec), "package": spec.package, "field": spec.field, "limit": seconds}
    with quiet(), tempfile.TemporaryDirectory(prefix="modelexport-packages-") as folder:

        def step(work: Callable[[], Any]) -> Json:
            return run_limited(work, seconds, _MEMORY)

        record["pytorch"] = step(lambda: [_eager_problem(spec, sizes) for sizes in (spec.example(), *spec.others())])
        path = Path(folder, "ours.onnx")
        record["ours"] = step(lambda: _export_ours(spec, path))
        if "value" in record["ours"]:
            record["runs"] = step(lambda: run_file(spec, path, record["ours"]["value"]["ranges"]))
        record["plain"] = _plain_exports(spec, Path(folder), step)
    return record


def _eager_problem(spec: PackageModel, sizes: Mapping[str, int]) -> str:
    """Why PyTorch's results at these sizes cannot be compared with; "" if they can."""
    tensors = _eager(spec.model(), spec.args(sizes))
    return "" if all(bool(tensor.isfinite().all()) for tensor in tensors) else f"values are not finite at {sizes}"


# --- exports ---------------------------------------------------------------------------------------------------


def cpu_seconds() -> float:
    """The CPU time of this process and of all that it started."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    living = [process.cpu_times() for process in psutil.Process().children(recursive=True)]
    return time.process_time() + ended.ru_utime + ended.ru_stime + sum(times.user + times.system for times in living)


def _export_ours(spec: PackageModel, path: Path) -> Json:
    """Ours; where it asks for consent to specialization, once more with it."""
    model, args = spec.model(), spec.args(spec.example())
    began, cpu = time.perf_counter(), cpu_seconds()
    options: Json = {"dynamic": "auto", "external_data": False}
    try:
        result = modelexport.export_model(model, args, path, **options)
    except modelexport.SpecializationError as error:
        asked = describe(error)
        result = modelexport.export_model(model, args, path, allow_specialization=True, **options)
    else:
        asked = ""
    return {
        "asked": asked,
        "seconds": round(time.perf_counter() - began, 2),
        "cpu": round(cpu_seconds() - cpu, 2),
        "check": result.check.outcome.value,
        "says": str(result.check),
        "notes": list(result.notes),
        "ranges": stated_ranges(result.document),
        "strategy": result.document.strategy,
        "exporter": result.document.exporter,
        "attempts": [f"{attempt.exporter}, {attempt.variant}: {attempt.error}"[:300] for attempt in result.attempts],
    }


def _plain_exports(spec: PackageModel, folder: Path, step: Callable[[Callable[[], Any]], Json]) -> list[Json]:
    """What plain torch makes of the axes named together by either exporter; if one of them is not free then, alone."""
    dimensions = _dimensions(spec)
    found: list[Json] = []
    for named in [dimensions] if len(dimensions) == 1 else [dimensions, *([dimension] for dimension in dimensions)]:
        for exporter in ("dynamo", "torchscript"):
            if set(named) <= freed_by_plain(found):
                break
            path = folder / "plain.onnx"
            outcome = step(
                lambda named=named, exporter=exporter, path=path: _export_plainly(spec, named, exporter, path)
            )
            entry = {"exporter": exporter, "named": list(named), "export": outcome}
            if "value" in outcome:
                entry["runs"] = step(lambda named=named, path=path: run_file(spec, path, {}, named))
            found.append(entry)
    return found


def _dimensions(spec: PackageModel) -> list[str]:
    return list(dict.fromkeys(dimension for axes in spec.axes() for dimension in axes.values()))


def freed_by_plain(exports: Sequence[Json]) -> set[str]:
    """The dimensions that are free in a file of plain torch which is right at every other size that PyTorch takes."""
    return {dimension for export in exports if is_right(export) for dimension in export["named"]}


def _export_plainly(spec: PackageModel, named: Collection[str], exporter: str, path: Path) -> Json:
    model, args, axes = spec.model(), spec.args(spec.example()), spec.named_axes(named)
    names = _parameters(model, len(args))
    began, cpu = time.perf_counter(), cpu_seconds()
    if exporter == "dynamo":
        shapes = tuple(None if tensor is None else of for tensor, of in zip(args, axes, strict=True))
        torch.onnx.export(
            model, args, str(path), dynamo=True, dynamic_shapes=shapes, external_data=False, verbose=False
        )
    else:
        dynamic_axes = {name: of for name, of in zip(names, axes, strict=True) if of}
        torch.onnx.export(model, args, str(path), dynamo=False, input_names=names, dynamic_axes=dynamic_axes)
    return {"seconds": round(time.perf_counter() - began, 2), "cpu": round(cpu_seconds() - cpu, 2)}


def _parameters(model: torch.nn.Module, count: int) -> list[str]:
    return list(inspect.signature(model.forward).parameters)[:count]


# --- runs of a file --------------------------------------------------------------------------------------------


def run_file(
    spec: PackageModel, path: Path, ranges: Mapping[str, Sequence[int | None]], named: Collection[str] | None = None
) -> Json:
    """Run a file at the example and at the other sizes, and compare with PyTorch.

    Args:
        spec: The model.
        path: The file.
        ranges: The sizes for which the file is said to be right, by axis or dimension.
        named: The dimensions to change; None for all that are free in the file.

    Returns:
        The dimensions that are free; the axes that are not, by dimension; and the outcome of each run.
    """
    import onnxruntime

    model, example = spec.model(), spec.args(spec.example())
    given = [place for place, value in enumerate(example) if value is not None]
    names = [_parameters(model, len(example))[place] for place in given]
    graph = onnx.load(path).graph
    positions = _positions([value.name for value in graph.input], names)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])

    symbols = _symbols(graph, positions)
    of_axis = {
        (position, axis): dimension
        for position, place in enumerate(given)
        for axis, dimension in spec.axes()[place].items()
        # An input that the graph does not have takes any size.
        if position in positions
    }
    fixed: dict[str, list[str]] = {}
    for (position, axis), dimension in of_axis.items():
        if (position, axis) not in symbols:
            fixed.setdefault(dimension, []).append(f"{names[position]}:{axis}")
    free = [dimension for dimension in _dimensions(spec) if dimension not in fixed]
    changed = free if named is None else [dimension for dimension in free if dimension in named]

    def run(args: tuple[Any, ...], sizes: Json) -> Json:
        try:
            expected = _eager(model, args)
        except Exception as error:  # noqa: BLE001  what PyTorch does not take says nothing of the file
            return {"sizes": sizes, "outcome": "refused", "detail": f"PyTorch: {error}"[:200]}
        tensors = [args[place] for place in given]
        feeds = {value.name: tensors[position].numpy() for value, position in zip(graph.input, positions, strict=True)}
        problem = _problem(session, feeds, expected)
        outside = any(
            is_outside(size, ranges.get(key))
            for position, tensor in enumerate(tensors)
            for axis, size in enumerate(tensor.shape)
            for key in (f"{names[position]}:{axis}", symbols.get((position, axis), ""))
        )
        return {
            "sizes": sizes,
            "outcome": ("outside" if outside else "wrong") if problem else "equal",
            "detail": problem,
        }

    runs = [run(example, {})]
    for other in spec.others():
        # A dimension that is not free keeps its size; one that no axis has (the number of graphs) is a value.
        taken = changed if named is not None else [dimension for dimension in other if dimension not in fixed]
        sizes = {dimension: other[dimension] for dimension in taken if other[dimension] != spec.example()[dimension]}
        if changed and sizes not in [each["sizes"] for each in runs]:
            runs.append(run(spec.args({**spec.example(), **sizes}), sizes))
    if named is None:
        runs += [run(args, sizes) for args, sizes in _with_unnamed_axes(example, given, symbols, set(of_axis))]
    return {"free": free, "fixed": fixed, "runs": runs}


def _positions(in_file: Sequence[str], names: Sequence[str]) -> list[int]:
    """The position among the tensors of each input of the file, which may leave out inputs that are not used."""
    if len(in_file) == len(names):
        return list(range(len(names)))
    if not set(in_file) <= set(names):
        raise ValueError(f"the inputs of the file are {list(in_file)}, those of forward {list(names)}")
    return [names.index(name) for name in in_file]


def _symbols(graph: onnx.GraphProto, positions: Sequence[int]) -> _Symbols:
    """The axes of the inputs that have no fixed size, with the name of the size."""
    return {
        (position, axis): size.dim_param or f"{value.name}:{axis}"
        for value, position in zip(graph.input, positions, strict=True)
        for axis, size in enumerate(value.type.tensor_type.shape.dim)
        if not size.HasField("dim_value")
    }


def _with_unnamed_axes(
    example: tuple[Any, ...], given: Sequence[int], symbols: _Symbols, known: Collection[tuple[int, int]]
) -> Iterator[tuple[tuple[Any, ...], Json]]:
    """Inputs with another size on an axis that is free in the file and that nobody named."""
    for symbol in dict.fromkeys(symbols[place] for place in symbols if place not in known):
        if not symbol.replace(":", "_").isidentifier():
            continue  # an expression of other sizes
        axes = [place for place, found in symbols.items() if found == symbol]
        size = example[given[axes[0][0]]].shape[axes[0][1]]
        for other in dict.fromkeys((size + 1, 2 * size, max(1, size - 1))):
            args = list(example)
            for position, axis in axes:
                tensor = args[given[position]]
                args[given[position]] = tensor.index_select(axis, torch.arange(other) % tensor.shape[axis]).contiguous()
            yield tuple(args), {symbol: other}


def _eager(model: torch.nn.Module, args: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors of PyTorch's result, in order."""
    with torch.no_grad():
        result = model(*(value.clone() if isinstance(value, torch.Tensor) else value for value in args))
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _problem(session: Any, feeds: Mapping[str, np.ndarray], expected: Sequence[torch.Tensor]) -> str:
    """How onnxruntime's results differ from PyTorch's; "" if they do not."""
    try:
        found = session.run(None, feeds)
    except Exception as error:  # noqa: BLE001  whatever it is, it is the outcome
        return f"onnxruntime: {' '.join(str(error).split())[:300]}"
    return difference(found, [tensor.numpy() for tensor in expected])
