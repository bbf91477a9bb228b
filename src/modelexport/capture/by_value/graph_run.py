"""Runs an ONNX graph on the example inputs of a model, and takes the fingerprint of every tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
import torch

from modelexport.capture.diagnosis import in_one_line
from modelexport.errors import InputError, ModelExportError, StrategyIncompatibleError
from modelexport.graph import Array, Fingerprint, subgraphs_of, take_fingerprint
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import Runner, numpy_type, prepared, require_onnxruntime, run_subgraphs

STRATEGY = "usage_based"


def check_onnxruntime() -> None:
    """Check that onnxruntime is installed.

    Raises:
        StrategyIncompatibleError: It is not.
    """
    try:
        require_onnxruntime()
    except InputError as error:
        raise StrategyIncompatibleError(
            STRATEGY, "it runs the ONNX graph, and onnxruntime is not installed.", "pip install 'modelexport[runtime]'"
        ) from error


def match_inputs(graph: ir.Graph, given: Sequence[tuple[str, torch.Tensor]]) -> dict[str, int]:
    """For each input of the graph the index of the example input to feed: by name, the others in order.

    Raises:
        InputError: The graph has more inputs than there are example inputs.
    """
    wanted = [value.name for value in graph.inputs if value.name and value.name not in graph.initializers]
    by_name = {_graph_name(name): index for index, (name, _) in reversed(list(enumerate(given)))}
    indices = {name: by_name[_graph_name(name)] for name in wanted if _graph_name(name) in by_name}
    unused = [index for index in range(len(given)) if index not in indices.values()]
    missing = [name for name in wanted if name not in indices]
    if len(missing) > len(unused):
        names = ", ".join(name for name, _ in given) or "none"
        raise InputError(
            f"the graph has the inputs {', '.join(wanted)}, but there are {len(given)} example inputs ({names}): "
            f"no tensor is left for {missing[len(unused)]!r}; give the inputs that the file was exported with"
        )
    indices.update(zip(missing, unused, strict=False))
    return indices


def _graph_name(name: str) -> str:
    # Exporters write the path of a nested tensor with underscores.
    return name.replace(".", "_")


def as_feed(tensor: torch.Tensor, value: ir.Value) -> Array:
    """A tensor as an array of the type of a graph input."""
    given = tensor.detach().cpu()
    array: Array = (given.float() if given.dtype is torch.bfloat16 else given).numpy()
    dtype = None if value.dtype is None else numpy_type(value.dtype)
    return array if dtype is None else array.astype(dtype, copy=False)


def run_graph(
    model: ir.Model, feeds: Mapping[str, Array], unknown_bytes: int, limits: RunLimits = DEFAULT_RUN_LIMITS
) -> tuple[dict[str, Fingerprint], dict[str, dict[str, Fingerprint]]]:
    """Run the graph and take the fingerprint of every tensor that a node produces.

    Returns the fingerprints in the main graph by tensor name, and those in each subgraph by its path. A tensor of
    unknown shape is taken to have `unknown_bytes`.

    Raises:
        StrategyIncompatibleError: onnxruntime cannot run it.
    """
    found: dict[str, Fingerprint] = {}
    in_subgraphs: dict[str, dict[str, Fingerprint]] = {}

    def receive(path: str, name: str, value: Array) -> None:
        fingerprint = take_fingerprint(value)
        if fingerprint is not None:
            in_subgraphs.setdefault(path, {})[name] = fingerprint

    try:
        # The thread limit that the user set for torch applies to onnxruntime too.
        with Runner(limits, threads=torch.get_num_threads()) as runner, prepared(model) as ready:
            for name, value in ready.tensors(runner, feeds, ready.produced, unknown_bytes):
                fingerprint = take_fingerprint(value)
                if fingerprint is not None:
                    found[name] = fingerprint
            if any(True for node in model.graph for _ in subgraphs_of(node)):
                run_subgraphs(runner, ready, feeds, receive)
    except ModelExportError as error:
        raise StrategyIncompatibleError(
            STRATEGY,
            f"onnxruntime cannot run the graph: {in_one_line(error)}.",
            "Check that the inputs fit the file, or choose a strategy that does not run it",
        ) from error
    return found, in_subgraphs
