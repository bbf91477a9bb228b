"""The ONNX graph in onnxruntime, its intermediate tensors as outputs: in groups, so that memory stays bounded."""

from __future__ import annotations

import contextlib
import functools
import math
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx.external_data_helper import (
    convert_model_to_external_data,
    load_external_data_for_tensor,
    write_external_data_tensors,
)

from modelexport.errors import InputError
from modelexport.runtime.bodies import InnerReceiver, run_bodies

Array = npt.NDArray[Any]
# Called with a tensor's name and content as soon as it is there.
Receiver = Callable[[str, Array], None]

# So many tensors are outputs of one run.
_GROUP = 256
_SMALL = 128
_SMALL_BYTES = 1024


def run_onnx(
    path: Path,
    feeds: Mapping[str, Array],
    receive: Receiver,
    tensors: Iterable[str] | None = None,
    receive_inner: InnerReceiver | None = None,
) -> None:
    """Run a model file and hand over what its main graph computes, and what the bodies in it do.

    Args:
        path: The file.
        feeds: The inputs by name.
        receive: Called with each tensor; only what it keeps stays in memory.
        tensors: The names of those that are wanted; None stands for all that nodes make.
        receive_inner: Called with the way to a body and each tensor there; None leaves the bodies out.

    Raises:
        InputError: onnxruntime is missing, or cannot run the file on these inputs.
    """
    runtime = _onnxruntime()
    with _without_weights(path) as (model, folder):
        made = [name for node in model.graph.node for name in node.output if name]
        wanted = made if tensors is None else [name for name in made if name in set(tensors)]
        final = list(model.graph.output)
        for start in range(0, len(wanted), _GROUP):
            group = wanted[start : start + _GROUP]
            _set_outputs(model, group, final)
            for name, value in zip(group, _run(runtime, model, folder, feeds, group, path), strict=True):
                if isinstance(value, np.ndarray):
                    receive(name, value)
        if receive_inner is not None:
            run_bodies(model, feeds, functools.partial(_run_for, runtime, folder, path), receive_inner)


def read_initializers(path: Path, names: Collection[str]) -> Iterator[tuple[str, Array]]:
    """The content of those weights of a model file, one after the other."""
    for tensor in onnx.load_model(path, load_external_data=False).graph.initializer:
        if tensor.name in names and tensor.data_type != onnx.TensorProto.STRING:
            yield tensor.name, onnx.numpy_helper.to_array(tensor, base_dir=str(path.parent))


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError(
            "judging by values runs the file in onnxruntime: pip install 'modelexport[runtime]'"
        ) from error
    return onnxruntime


@contextlib.contextmanager
def _without_weights(path: Path) -> Iterator[tuple[onnx.ModelProto, Path]]:
    """The model with its weights in a file, and the folder of that file: written once for all groups."""
    model = onnx.load_model(path, load_external_data=False)
    outside = [t for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    if outside:
        for tensor in outside:
            if math.prod(tensor.dims) <= _SMALL:
                # It may be a shape, which the runtime wants to know before it runs anything.
                load_external_data_for_tensor(tensor, str(path.parent))
                tensor.data_location = onnx.TensorProto.DEFAULT
                del tensor.external_data[:]
        yield model, path.parent
        return
    with tempfile.TemporaryDirectory(prefix="modelexport-") as folder:
        convert_model_to_external_data(model, location="weights", size_threshold=_SMALL_BYTES)
        write_external_data_tensors(model, folder)
        yield model, Path(folder)


def _set_outputs(model: onnx.ModelProto, names: Sequence[str], final: Sequence[onnx.ValueInfoProto]) -> None:
    known = {value.name: value for value in final}
    del model.graph.output[:]
    # Shapes that were written down may be those of other inputs.
    del model.graph.value_info[:]
    model.graph.output.extend(known.get(name) or onnx.ValueInfoProto(name=name) for name in names)


def _run_for(
    runtime: Any, folder: Path, path: Path, model: onnx.ModelProto, feeds: Mapping[str, Array], names: Sequence[str]
) -> list[Any]:
    wanted = onnx.ModelProto()
    wanted.CopyFrom(model)
    _set_outputs(wanted, names, ())
    return _run(runtime, wanted, folder, feeds, names, path)


def _run(
    runtime: Any, model: onnx.ModelProto, folder: Path, feeds: Mapping[str, Array], names: Sequence[str], path: Path
) -> list[Any]:
    options = runtime.SessionOptions()
    # As the file says, node by node.
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    try:
        session = runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        taken = {value.name for value in session.get_inputs()}
        return list(session.run(list(names), {name: feeds[name] for name in taken & feeds.keys()}))
    except Exception as error:
        message = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"onnxruntime cannot run {path} on these inputs: {message}") from error
