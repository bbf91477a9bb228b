"""Compare the outputs of a graph with the results of PyTorch's model, by position."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from modelexport.analysis import Difference
from modelexport.torch_support import flattened_results
from modelexport.verification.difference import Tolerance, compare, not_comparable
from modelexport.verification.pytorch_run import array_of


class Result(NamedTuple):
    """A tensor or number that the model returned: its name there, its content, and its element type in PyTorch."""

    name: str
    content: np.ndarray
    dtype: str
    is_number: bool = False


class ComparedOutput(NamedTuple):
    """An output of the graph and the result in its position; without a difference where onnxruntime gave no array."""

    name: str
    tensor: str | None
    result: Result | None
    difference: Difference | None


def results_of(returned: object) -> tuple[Result, ...]:
    """Everything that `forward` returned that can be an output of a graph, in the order of the graph's outputs."""
    return tuple(
        # Copied: results may share memory with buffers, which are restored.
        Result(name, array_of(tensor).copy(), str(tensor.dtype).removeprefix("torch."), leaf is not tensor)
        for name, leaf in flattened_results(returned)
        for tensor in (leaf if isinstance(leaf, torch.Tensor) else torch.tensor(leaf),)
    )


def compare_outputs(
    outputs: Sequence[str],
    found: Mapping[str, np.ndarray],
    results: Sequence[Result],
    tolerance: Tolerance,
    types: Iterable[str],
    *,
    any_float: bool = False,
) -> Iterator[ComparedOutput]:
    """Compare each output with the result in its position. One without a counterpart is out of tolerance.

    Args:
        outputs: The names of the graph's outputs, in order.
        found: What onnxruntime computed for them.
        results: What PyTorch's model returned.
        tolerance: What counts as equal.
        types: The types that the graph computes with.
        any_float: Whether floats may have another width than in PyTorch, as in a file that was converted.
    """
    if len(results) > len(outputs):
        # Exporters write numbers only where they depend on the inputs.
        results = [result for result in results if not result.is_number]
    types = tuple(types)
    for tensor, result in itertools.zip_longest(outputs, results):
        if tensor is None:
            yield ComparedOutput(result.name, None, result, not_comparable("the file has no output for it"))
        elif result is None:
            problem = f"PyTorch returns {len(results)} results, none for output {tensor} of the file"
            yield ComparedOutput(tensor, tensor, None, not_comparable(problem))
        elif tensor not in found:
            yield ComparedOutput(result.name, tensor, result, None)
        else:
            difference = _difference(found[tensor], result, tolerance, types, any_float)
            yield ComparedOutput(result.name, tensor, result, difference)


def _difference(
    content: np.ndarray, result: Result, tolerance: Tolerance, types: Iterable[str], any_float: bool
) -> Difference:
    kinds = content.dtype.kind, result.content.dtype.kind
    if content.dtype != result.content.dtype and not (any_float and kinds == ("f", "f")):
        return not_comparable(f"its element type is {content.dtype} instead of {result.dtype}")
    return compare(content, result.content, tolerance, result.dtype, *types)
