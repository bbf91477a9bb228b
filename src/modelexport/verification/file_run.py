"""Run a model file in onnxruntime and collect the tensors that its nodes produce."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import onnx
import torch

from modelexport.errors import FileFormatError, InputError, OnnxRunError
from modelexport.limits import RunLimits
from modelexport.ort import Array, Runner, SubgraphReceiver, prepared, run_subgraphs
from modelexport.storage import build_ir


def run_file(
    path: Path,
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    receive: Callable[[str, Array], None],
    receive_inner: SubgraphReceiver,
    limits: RunLimits,
) -> None:
    """Run a model file and pass each produced tensor to a callback, so that not all are in memory at a time.

    Args:
        path: The file.
        model: The model in it, with its inline weights.
        feeds: The inputs by name.
        receive: Called with the name and content of each tensor of the main graph.
        receive_inner: Called with the path of a subgraph and the name and content of each tensor there.
        limits: The limits of one run.

    Raises:
        InputError: onnxruntime cannot run the file on these inputs.
    """
    try:
        with Runner(limits, threads=torch.get_num_threads()) as runner, prepared(build_ir(path, model)) as ready:
            for name, value in ready.tensors(runner, feeds, ready.produced):
                receive(name, value)
            run_subgraphs(runner, ready, feeds, receive_inner)
    except (FileFormatError, OnnxRunError) as error:
        raise InputError(f"onnxruntime cannot run {path} on these inputs: {error}") from error


def read_initializers(path: Path, model: onnx.ModelProto, names: Collection[str]) -> Iterator[tuple[str, Array]]:
    """The content of these initializers of a model file, one at a time."""
    for tensor in model.graph.initializer:
        if tensor.name in names and tensor.data_type != onnx.TensorProto.STRING:
            yield tensor.name, onnx.numpy_helper.to_array(tensor, base_dir=str(path.parent))
