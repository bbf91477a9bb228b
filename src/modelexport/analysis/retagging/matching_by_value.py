"""Match the tensors of two files by running both on the same inputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from modelexport.analysis.retagging.synthetic_feeds import (
    InputPair,
    feeds_from_arrays,
    feeds_of_graph,
    pair_inputs,
    synthesize_feeds,
)
from modelexport.analysis.retagging.tensor_matching import Fingerprints, match_tensors
from modelexport.errors import FileFormatError, InputError, OnnxRunError
from modelexport.graph import Fingerprint, take_fingerprint
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import PreparedModel, Runner, prepared, require_onnxruntime

Arrays = Mapping[str, npt.NDArray[Any]]


def fingerprint_tensors(
    runner: Runner, model: ir.Model, ready: PreparedModel, feeds: Mapping[str, npt.NDArray[Any]]
) -> dict[ir.Value, Fingerprint]:
    """Fingerprints of inputs, weights and every tensor that nodes of a model's main graph produce.

    Tensors that are empty or not numeric have none. `ready` is the same model, prepared for runs.
    """
    found: dict[ir.Value, Fingerprint] = {}

    def keep(value: ir.Value, array: npt.NDArray[Any]) -> None:
        itemsize = value.dtype.itemsize if value.dtype is not None else array.itemsize
        fingerprint = take_fingerprint(array, max(int(itemsize), 1))
        if fingerprint is not None:
            found[value] = fingerprint

    for value in model.graph.inputs:
        if value.name is not None and value.name in feeds:
            keep(value, feeds[value.name])
    for value in model.graph.initializers.values():
        if value.const_value is not None and value not in found:
            keep(value, _content(value.const_value))
    produced = {value.name: value for node in model.graph for value in node.outputs if value.name}
    for name, array in ready.tensors(runner, feeds, ready.produced):
        keep(produced[name], array)
    return found


def _content(tensor: ir.TensorProtocol) -> npt.NDArray[Any]:
    try:
        array = np.asarray(tensor.numpy())
    except Exception as error:
        raise FileFormatError(f"the weight {tensor.name!r} cannot be read: {type(error).__name__}: {error}") from error
    if array.dtype.kind in "fiub" or tensor.dtype == ir.DataType.STRING:
        return array
    return array.astype(np.float32)


def match_tensors_by_value(
    original: ir.Model,
    original_path: Path,
    rewritten: ir.Model,
    rewritten_path: Path,
    *,
    inputs: Arrays | None = None,
    arguments: Mapping[str, str] | None = None,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
) -> dict[ir.Value, ir.Value]:
    """The original tensors by rewritten tensor, for tensors with equal values and matching data flow.

    Without inputs by name, they are synthesized. `arguments` are forward arguments, by input of the original model.
    """
    require_onnxruntime()
    pairs = pair_inputs(original, rewritten, arguments or {})
    candidates = synthesize_feeds(pairs) if inputs is None else [feeds_from_arrays(pairs, inputs)]
    with Runner(limits) as runner, contextlib.ExitStack() as stack:
        files = []
        for model, path in ((original, original_path), (rewritten, rewritten_path)):
            with _naming(path):
                files.append((path, model, stack.enter_context(prepared(model))))
        before, after = _run_both(runner, files, pairs, candidates)
    found = match_tensors(original, before, rewritten, after, [(pair.original, pair.rewritten) for pair in pairs])
    if not any(value.producer() is not None and after[value].is_distinctive for value in found if value in after):
        raise InputError(
            f"{rewritten_path} computes no tensor of {original_path} on these inputs: it was created from another "
            "model, or by a tool that changes all values, such as a quantizer"
        )
    return found


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the file in errors of running it."""
    try:
        yield
    except OnnxRunError as error:
        raise OnnxRunError(f"onnxruntime cannot run {path}: {error}") from error
    except FileFormatError as error:
        raise FileFormatError(f"{path} cannot be run: {error}") from error


def _run_both(
    runner: Runner,
    files: Sequence[tuple[Path, ir.Model, PreparedModel]],
    pairs: Sequence[InputPair],
    candidates: Iterable[Sequence[npt.NDArray[Any]]],
) -> list[Fingerprints]:
    problem = ""
    for arrays in candidates:
        found: list[Fingerprints] = []
        try:
            for (path, model, ready), inputs in zip(
                files, ([p.original for p in pairs], [p.rewritten for p in pairs]), strict=True
            ):
                with _naming(path):
                    found.append(fingerprint_tensors(runner, model, ready, feeds_of_graph(inputs, arrays)))
            return found
        except OnnxRunError as error:
            problem = problem or str(error)
    raise InputError(
        f"{problem}; if the inputs are the cause, give inputs that both files accept with --inputs or --input-shape"
    )
