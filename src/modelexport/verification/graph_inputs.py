"""The tensors for the inputs of a graph: the model's inputs, and those that its exporter computes from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from modelexport.hierarchy import ROOT_CALL, CallRecord, ForwardArgument, HierarchyDocument
from modelexport.torch_support import copied_inputs, named_arguments, tensors_in
from modelexport.torch_support.transformers_private import prepared_inputs
from modelexport.verification.reference_run import reference_run

# The exporter of transformers computes some arguments before the forward pass, because forward computes them in a way
# that cannot be traced. Its files have them as inputs.
_PREPARES_INPUTS = "transformers"


class GraphInputs:
    """The tensors for the inputs of a graph, including those that its exporter computes.

    Args:
        document: The document of the file, for the exporter and the argument of each graph input.
        model: The model. It is not changed.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        wanted: The names of the graph's inputs, without initializers.

    Attributes:
        tensors: The tensor for each wanted input.
        missing: The wanted inputs without a tensor.
        why: Why the exporter's preparation failed; empty if it succeeded or does not exist.
    """

    def __init__(
        self,
        document: HierarchyDocument,
        model: torch.nn.Module,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        wanted: Sequence[str],
    ) -> None:
        root = _root(document)
        boundary = {tensor.tensor: tensor.name for tensor in root.inputs} if root is not None else {}
        arguments = next((module.forward_arguments for module in document.modules if module.path == ""), ())
        given = dict(named_arguments(arguments, args, kwargs))
        self.why = ""
        if document.exporter == _PREPARES_INPUTS and any(boundary.get(name, name) not in given for name in wanted):
            prepared, self.why = _prepared(model, _by_name(arguments, args, kwargs))
            given = {**prepared, **given}
        self.tensors = {name: given[boundary.get(name, name)] for name in wanted if boundary.get(name, name) in given}
        self.missing = [name for name in wanted if name not in self.tensors]

    def explain(self) -> str:
        """The missing inputs, and what to do."""
        problem = f"no tensor for {', '.join(map(repr, self.missing))}"
        if self.why:
            problem += f", which the exporter of transformers computes from the other inputs; that failed ({self.why})"
        return f"{problem}: give the inputs that the file was exported with, by name"


def _root(document: HierarchyDocument) -> CallRecord | None:
    return next((call for call in document.calls if call.id == str(ROOT_CALL)), None)


def _by_name(arguments: Sequence[ForwardArgument], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    positional = [argument.name for argument in arguments if argument.kind.startswith("positional")]
    return {**dict(zip(positional, args, strict=False)), **kwargs}


def _prepared(model: torch.nn.Module, kwargs: dict[str, Any]) -> tuple[dict[str, torch.Tensor], str]:
    """The inputs as the exporter of transformers prepares them for tracing, or why that fails."""
    _, copied = copied_inputs((), kwargs)
    with reference_run(model):
        try:
            inputs = prepared_inputs(model, copied)
        except Exception as error:  # noqa: BLE001  a model may raise anything; its own inputs are used then
            return {}, " ".join(f"{type(error).__name__}: {error}".split())
    return {name: tensor for key, value in inputs.items() for name, tensor in tensors_in(value, key)}, ""
