"""Export a model as a function from tensors to tensors.

The TorchScript exporter cannot order every set of keyword arguments, and cannot flatten every result. A function from
tensors to tensors has neither.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from modelexport.errors import UnusableOptionError
from modelexport.hierarchy import ROOT_CALL, BoundaryTensor, CallTree, ModuleCall, ModuleTree
from modelexport.torch_support import named_arguments, named_results
from modelexport.torch_support.private import flatten, unflatten


@dataclasses.dataclass
class FunctionOfTensors:
    """A model as a function from tensors to tensors.

    Attributes:
        tensors: The example inputs.
        names: The model's names of the inputs.
        results: The model's names of the results.
    """

    tensors: tuple[torch.Tensor, ...]
    names: list[str]
    results: list[str] = dataclasses.field(default_factory=list)

    def with_own_names(self, calls: CallTree) -> CallTree:
        """Return the calls, with the model's own names of arguments and results for the root."""
        root = calls[ROOT_CALL]

        def named(boundary: tuple[BoundaryTensor, ...], names: list[str]) -> tuple[BoundaryTensor, ...]:
            if len(boundary) != len(names):
                return boundary
            return tuple(BoundaryTensor(n, b.tensor, b.info) for n, b in zip(names, boundary, strict=True))

        own = ModuleCall(root.path, root.index, None, named(root.inputs, self.names), named(root.outputs, self.results))
        return CallTree({call.id: own if call.id == ROOT_CALL else call for call in calls})


@contextlib.contextmanager
def as_function_of_tensors(
    model: torch.nn.Module, tree: ModuleTree, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[FunctionOfTensors]:
    """Replace `forward` within the context by a function that takes and returns tensors only.

    The tensors are in the order of forward's arguments, as in every other call that the exporter traces: it assigns the
    names of inputs by position.

    Raises:
        UnusableOptionError: The inputs contain tensors that cannot be replaced.
    """
    order = {argument.name: position for position, argument in enumerate(tree[""].forward_arguments)}
    kwargs = dict(sorted(kwargs.items(), key=lambda item: order.get(item[0], len(order))))
    inputs = list(named_arguments(tree[""].forward_arguments, args, kwargs))
    leaves, structure = flatten((args, kwargs))
    positions = [position for position, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if len(positions) != len(inputs):
        raise UnusableOptionError(
            "the example inputs contain tensors inside objects that the TorchScript exporter cannot flatten.",
            "Pass tensors, tuples, lists and dicts.",
        )
    original = model.forward
    own = model.__dict__.get("forward")

    def forward(*tensors: torch.Tensor) -> Any:
        values = list(leaves)
        for position, tensor in zip(positions, tensors, strict=True):
            values[position] = tensor
        new_args, new_kwargs = unflatten(values, structure)
        results = dict(named_results(original(*new_args, **new_kwargs)))
        if not results:
            raise UnusableOptionError("forward returns no tensor, and a graph needs outputs.", "Return tensors.")
        form.results = list(results)
        found = list(results.values())
        return found[0] if len(found) == 1 else tuple(found)

    form = FunctionOfTensors(tuple(tensor for _, tensor in inputs), [name for name, _ in inputs])
    model.forward = forward
    try:
        yield form
    finally:
        if own is None:
            del model.__dict__["forward"]
        else:
            model.__dict__["forward"] = own
