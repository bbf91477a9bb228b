"""Runs a file of the sweep on inputs and compares it with PyTorch, by position; says where a difference comes from.

It shares no judgement with the package: the graph is read with onnx, run with onnxruntime, and PyTorch's result is
flattened by torch. Only inputs that an exporter computes itself are taken from the package's own runs of a file.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import torch
from benchmarks.output_difference import difference
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import modelexport
from modelexport.torch_support import preserved_state, weights_restored
from modelexport.verification.onnx_run import GraphInputs

SEED = 0
# PyTorch's weights and inputs are changed by this much, relatively, to see what rounding may change.
_ROUNDING = 1e-6
# What can be an output of a graph.
_VALUES = (torch.Tensor, bool, int, float)

# The outcomes of a run.
EQUAL, DIFFERENT, FAILED, REFUSED = "equal", "different", "failed", "refused"
NOT_COMPARABLE = "not comparable"
# Where a difference comes from.
NONDETERMINISM, NUMERICS = "nondeterminism", "numerics"
BRANCH, BAKED = "data-dependent branch", "baked value"

Json = dict[str, Any]


class Call(NamedTuple):
    """The arguments of a call of the model."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def leaves(self) -> list[Any]:
        """Everything in the arguments, in the order in which torch flattens them."""
        return pytree.tree_leaves((self.args, self.kwargs))

    def with_leaves(self, leaves: Sequence[Any]) -> Call:
        """The call with these instead."""
        return Call(*pytree.tree_unflatten(list(leaves), pytree.tree_structure((self.args, self.kwargs))))


class NotComparableError(Exception):
    """PyTorch returns what no output of a graph can be."""


class Judge:
    """Runs one file and the model that it was exported from.

    Args:
        path: The file.
        model: The model.
        example: The call that the file was exported with.
    """

    def __init__(self, path: Path, model: torch.nn.Module, example: Call) -> None:
        self._path, self._model, self._example = path, model, example
        graph = onnx.load(path, load_external_data=False).graph
        weights = {weight.name for weight in graph.initializer}
        self.inputs = [value for value in graph.input if value.name not in weights]
        # For each input of the graph, the position of its tensor among the leaves; None where that is not known.
        self.positions = self._find_positions()
        self._sessions: dict[bool, Any] = {}
        _register_caches(model)

    # --- inputs ---

    def leaf_names(self) -> list[str]:
        """A name for each leaf of the example: the argument of `forward`, and the keys that lead to it."""
        bound = inspect.signature(self._model.forward).bind_partial(*self._example.args)
        arguments = {**dict(zip(bound.arguments, self._example.args, strict=False)), **self._example.kwargs}
        if len(arguments) != len(self._example.args) + len(self._example.kwargs):
            arguments = {**{f"args.{n}": value for n, value in enumerate(self._example.args)}, **self._example.kwargs}
        return [
            ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
            for path, _ in pytree.tree_flatten_with_path(arguments)[0]
        ]

    def _find_positions(self) -> list[int | None]:
        leaves = self._example.leaves()
        tensors = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        names = {name: place for place, name in enumerate(self.leaf_names()) if place in tensors}
        by_name = [names.get(value.name) for value in self.inputs]
        if any(place is None for place in by_name) and len(tensors) == len(self.inputs):
            by_name = list(tensors)
        fits = all(
            place is not None and _fits(value, leaves[place]) for place, value in zip(by_name, self.inputs, strict=True)
        )
        return by_name if fits else [None] * len(self.inputs)

    @property
    def maps_inputs_itself(self) -> bool:
        """Whether the inputs of the graph are tensors of the example."""
        return None not in self.positions

    def feeds(self, call: Call) -> dict[str, np.ndarray]:
        """The inputs of the graph."""
        if self.maps_inputs_itself:
            leaves = call.leaves()
            found = {value.name: leaves[place or 0] for value, place in zip(self.inputs, self.positions, strict=True)}
        else:
            names = [value.name for value in self.inputs]
            document = modelexport.load(self._path).document
            inputs = GraphInputs(document, self._model, *copy.deepcopy(call), names)
            if inputs.missing:
                raise NotComparableError(inputs.explain())
            found = inputs.tensors
        return {name: _array(tensor) for name, tensor in found.items()}

    # --- runs ---

    def run(self, call: Call, sizes_or_values: str) -> Json:
        """The outcome of one run: how the file's results compare with PyTorch's."""
        found: Json = {"inputs": sizes_or_values}
        try:
            expected = self.eager(call)
        except NotComparableError as error:
            return {**found, "outcome": NOT_COMPARABLE, "detail": str(error)}
        except Exception as error:  # noqa: BLE001  what PyTorch does not take says nothing of the file
            return {**found, "outcome": REFUSED, "detail": _line(error)}
        try:
            feeds = self.feeds(call)
        except Exception as error:  # noqa: BLE001  an exporter's own preparation may fail in any way
            return {**found, "outcome": NOT_COMPARABLE, "detail": _line(error)}
        try:
            problem = difference(self._run(feeds), expected)
            outcome = DIFFERENT if problem else EQUAL
        except Exception as error:  # noqa: BLE001  whatever it is, it is the outcome
            outcome, problem = FAILED, f"onnxruntime: {_line(error)}"
        found |= {"outcome": outcome, "detail": problem}
        return {**found, "cause": self._cause(call, feeds, expected)} if problem else found

    def _run(self, feeds: Mapping[str, np.ndarray], *, optimized: bool = True) -> list[Any]:
        import onnxruntime

        if optimized not in self._sessions:
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            options.intra_op_num_threads = 1
            if not optimized:
                options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            self._sessions[optimized] = onnxruntime.InferenceSession(self._path, options, ["CPUExecutionProvider"])
        return list(self._sessions[optimized].run(None, dict(feeds)))

    def eager(self, call: Call, seed: int = SEED) -> list[Any]:
        """The tensors and numbers of PyTorch's result, in the order in which torch flattens it."""
        with preserved_state(self._model), weights_restored(self._model), torch.no_grad():
            torch.manual_seed(seed)
            result = self._model(*copy.deepcopy(call.args), **copy.deepcopy(call.kwargs))
            leaves = [leaf for leaf in pytree.tree_leaves(result) if leaf is not None]
            unknown = [leaf for leaf in leaves if not isinstance(leaf, _VALUES)]
            if unknown:
                raise NotComparableError(f"PyTorch returns a {type(unknown[0]).__name__}")
            return [_array(leaf).copy() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]

    # --- causes ---

    def _cause(self, call: Call, feeds: Mapping[str, np.ndarray], expected: list[Any]) -> str:
        if self._differs(expected, lambda: self.eager(call, SEED + 1)):
            return NONDETERMINISM
        if not self._differs(expected, lambda: self._run(feeds, optimized=False)):
            return NUMERICS
        if self._differs(expected, lambda: self._rounded(call)):
            return NUMERICS
        return BRANCH if self._operators(call) != self._operators(self._example) else BAKED

    @staticmethod
    def _differs(expected: list[Any], run: Any) -> bool:
        try:
            return bool(difference(run(), expected))
        except Exception:  # noqa: BLE001  it fails, which the expected results did not
            return True

    def _rounded(self, call: Call) -> list[Any]:
        generator = torch.Generator().manual_seed(SEED)

        def changed(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor) or not leaf.is_floating_point():
                return leaf
            return leaf * (1 + _ROUNDING * torch.randn(leaf.shape, generator=generator)).to(leaf.dtype)

        weights = {name: weight.clone() for name, weight in self._model.state_dict().items()}
        with torch.no_grad():
            for parameter in self._model.parameters():
                parameter.copy_(changed(parameter))
        try:
            return self.eager(call.with_leaves([changed(leaf) for leaf in call.leaves()]))
        finally:
            self._model.load_state_dict(weights)

    def _operators(self, call: Call) -> list[str]:
        """The operators that PyTorch runs, in order."""
        seen: list[str] = []

        class Record(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                seen.append(str(func))
                return func(*args, **(kwargs or {}))

        with Record():
            self.eager(call)
        return seen


def _fits(value: onnx.ValueInfoProto, tensor: torch.Tensor) -> bool:
    """Whether a tensor has the type and the known sizes of an input."""
    wanted = value.type.tensor_type
    sizes = [size.dim_value if size.HasField("dim_value") else None for size in wanted.shape.dim]
    return (
        len(sizes) == tensor.dim()
        and all(known in (None, size) for known, size in zip(sizes, tensor.shape, strict=True))
        and onnx.helper.tensor_dtype_to_np_dtype(wanted.elem_type) == _array(tensor).dtype
    )


def _register_caches(model: torch.nn.Module) -> None:
    """Let torch flatten the caches of transformers, as its exporter does."""
    if type(model).__module__.startswith("transformers."):
        from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model

        register_cache_pytrees_for_model(model)


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().resolve_conj().resolve_neg().numpy()


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
