"""Every tensor of a model file, as onnxruntime computes it or as it lies in the file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

import onnx
import torch

from modelexport.errors import FileFormatError, InputError, OnnxRunError
from modelexport.limits import RunLimits
from modelexport.ort import Array, Runner, SubgraphReceiver, prepared, run_subgraphs
from modelexport.storage import load


def run_file(
    path: Path,
    feeds: Mapping[str, Array],
    receive: Callable[[str, Array], None],
    receive_inner: SubgraphReceiver,
    limits: RunLimits,
) -> None:
    """Run a model file and pass on each tensor that nodes produce; only what the receivers keep stays in memory.

    Args:
        path: The file.
        feeds: The inputs by name.
        receive: Called with the name and content of each tensor of the main graph.
        receive_inner: Called with the path of a subgraph and the name and content of each tensor there.
        limits: What one run may take.

    Raises:
        InputError: onnxruntime cannot run the file on these inputs.
    """
    model = load(path).model
    try:
        with Runner(limits, threads=torch.get_num_threads()) as runner, prepared(model) as ready:
            for name, value in ready.tensors(runner, feeds, ready.produced):
                receive(name, value)
            run_subgraphs(runner, ready, feeds, receive_inner)
    except (FileFormatError, OnnxRunError) as error:
        raise InputError(f"onnxruntime cannot run {path} on these inputs: {error}") from error


def read_initializers(path: Path, names: Collection[str]) -> Iterator[tuple[str, Array]]:
    """The content of these weights of a model file, one after the other."""
    for tensor in onnx.load_model(path, load_external_data=False).graph.initializer:
        if tensor.name in names and tensor.data_type != onnx.TensorProto.STRING:
            yield tensor.name, onnx.numpy_helper.to_array(tensor, base_dir=str(path.parent))
