"""Match the tensors of two files by running both on the same inputs."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from modelexport.analysis.retagging.synthetic_feeds import (
    InputPair,
    feeds_from_arrays,
    feeds_of_graph,
    pair_inputs,
    synthesize_feeds,
)
from modelexport.analysis.retagging.tensor_fingerprints import Fingerprints, fingerprint_tensors
from modelexport.analysis.retagging.tensor_matching import match_tensors
from modelexport.errors import FileFormatError, InputError, OnnxRunError
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import PreparedModel, Runner, prepared, require_onnxruntime

Arrays = Mapping[str, npt.NDArray[Any]]


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

    Args:
        original: The original model.
        original_path: Its file.
        rewritten: The rewritten model.
        rewritten_path: Its file.
        inputs: The inputs by name; None synthesizes them.
        arguments: The names of forward arguments, by input of the original model.
        limits: The limits of a run.

    Raises:
        InputError: onnxruntime is missing or cannot run a file, the inputs do not match, or no tensor does.
    """
    require_onnxruntime()
    pairs = pair_inputs(original, rewritten, arguments or {})
    candidates = synthesize_feeds(pairs) if inputs is None else [feeds_from_arrays(pairs, inputs)]
    with (
        Runner(limits) as runner,
        _prepare(original, original_path) as first,
        _prepare(rewritten, rewritten_path) as second,
    ):
        before, after = _run_both(runner, first, second, pairs, candidates)
    found = match_tensors(original, before, rewritten, after, [(pair.original, pair.rewritten) for pair in pairs])
    if not any(value.producer() is not None and after[value].is_distinctive for value in found if value in after):
        raise InputError(
            f"{rewritten_path} computes no tensor of {original_path} on these inputs: it was created from another "
            "model, or by a tool that changes all values, such as a quantizer"
        )
    return found


@dataclasses.dataclass(frozen=True)
class _RunnableFile:
    path: Path
    model: ir.Model
    prepared_model: PreparedModel

    def run(self, runner: Runner, feeds: Arrays) -> Fingerprints:
        try:
            return fingerprint_tensors(runner, self.model, self.prepared_model, feeds)
        except OnnxRunError as error:
            raise OnnxRunError(f"onnxruntime cannot run {self.path}: {error}") from error
        except FileFormatError as error:
            raise FileFormatError(f"{self.path} cannot be run: {error}") from error


@contextlib.contextmanager
def _prepare(model: ir.Model, path: Path) -> Iterator[_RunnableFile]:
    with contextlib.ExitStack() as stack:
        try:
            prepared_model = stack.enter_context(prepared(model))
        except FileFormatError as error:
            raise FileFormatError(f"{path} cannot be run: {error}") from error
        yield _RunnableFile(path, model, prepared_model)


def _run_both(
    runner: Runner,
    original: _RunnableFile,
    rewritten: _RunnableFile,
    pairs: Sequence[InputPair],
    candidates: Iterable[Sequence[npt.NDArray[Any]]],
) -> tuple[Fingerprints, Fingerprints]:
    problem = ""
    for arrays in candidates:
        try:
            return (
                original.run(runner, feeds_of_graph([pair.original for pair in pairs], arrays)),
                rewritten.run(runner, feeds_of_graph([pair.rewritten for pair in pairs], arrays)),
            )
        except OnnxRunError as error:
            problem = problem or str(error)
    raise InputError(
        f"{problem}; if the inputs are the cause, give inputs that both files accept with --inputs or --input-shape"
    )
