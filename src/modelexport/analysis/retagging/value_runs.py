"""The same tensors of two files that compute the same, found by running both once."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from modelexport.analysis.retagging.synthetic_feeds import InputPair, for_graph, given_feeds, made_feeds, pair_inputs
from modelexport.analysis.retagging.tensor_matching import match_tensors
from modelexport.analysis.retagging.tensor_values import Fingerprints, fingerprint_tensors
from modelexport.errors import FileFormatError, InputError, OnnxRunError
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import PreparedModel, Runner, prepared, require_onnxruntime

Arrays = Mapping[str, npt.NDArray[Any]]


def same_tensors(
    first: ir.Model,
    first_path: Path,
    second: ir.Model,
    second_path: Path,
    *,
    inputs: Arrays | None = None,
    arguments: Mapping[str, str] | None = None,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
) -> dict[ir.Value, ir.Value]:
    """For tensors of the second model those of the first that hold the same and stand at the same place.

    Args:
        first: The first model.
        first_path: Its file: weights in other files are looked for beside it.
        second: The second model.
        second_path: Its file.
        inputs: What both run on, by the names of inputs; None to make it up.
        arguments: What the inputs of the first are also called.
        limits: What one run may take.

    Raises:
        InputError: onnxruntime is missing or cannot run a file, the inputs don't fit, or nothing is the same.
    """
    require_onnxruntime()
    pairs = pair_inputs(first, second, arguments or {})
    candidates = made_feeds(pairs) if inputs is None else [given_feeds(pairs, inputs)]
    with Runner(limits) as runner, _file(first, first_path) as one, _file(second, second_path) as other:
        before, after = _run_both(runner, one, other, pairs, candidates)
    found = match_tensors(first, before, second, after, [(pair.first, pair.second) for pair in pairs])
    if not any(value.producer() is not None and after[value].is_distinctive for value in found if value in after):
        raise InputError(
            f"{second_path} computes nothing that {first_path} computes on these inputs: it was made of another model, "
            "or its values are others (a quantized file's are)"
        )
    return found


@dataclasses.dataclass(frozen=True)
class _File:
    path: Path
    model: ir.Model
    ready: PreparedModel

    def run(self, runner: Runner, feeds: Arrays) -> Fingerprints:
        try:
            return fingerprint_tensors(runner, self.model, self.ready, feeds)
        except OnnxRunError as error:
            raise OnnxRunError(f"onnxruntime cannot run {self.path}: {error}") from error
        except FileFormatError as error:
            raise FileFormatError(f"{self.path} cannot be run: {error}") from error


@contextlib.contextmanager
def _file(model: ir.Model, path: Path) -> Iterator[_File]:
    with contextlib.ExitStack() as stack:
        try:
            ready = stack.enter_context(prepared(model))
        except FileFormatError as error:
            raise FileFormatError(f"{path} cannot be run: {error}") from error
        yield _File(path, model, ready)


def _run_both(
    runner: Runner,
    first: _File,
    second: _File,
    pairs: Sequence[InputPair],
    candidates: Iterable[Sequence[npt.NDArray[Any]]],
) -> tuple[Fingerprints, Fingerprints]:
    problem = ""
    for arrays in candidates:
        try:
            return (
                first.run(runner, for_graph([pair.first for pair in pairs], arrays)),
                second.run(runner, for_graph([pair.second for pair in pairs], arrays)),
            )
        except OnnxRunError as error:
            problem = problem or str(error)
    raise InputError(
        f"{problem}; if that is because of the inputs, give others that both files take with --inputs or --input-shape"
    )
