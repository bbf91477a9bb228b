"""The tensors that the inputs of a graph take: those the model was given, and those its exporter made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from modelexport.hierarchy import ROOT_CALL, CallRecord, ForwardArgument, HierarchyDocument
from modelexport.torch_support import (
    TORCH_LOCK,
    buffers_restored,
    copied_inputs,
    evaluation_mode,
    named_arguments,
    preserved_state,
    tensors_in,
)
from modelexport.torch_support.transformers_private import prepared_inputs

# transformers' own exporter computes some arguments ahead, where forward would do it in a way that cannot be traced:
# its files have them as inputs.
_PREPARES_INPUTS = "transformers"


class GraphInputs:
    """What a model is given, by the names of its arguments, completed as the graph's exporter completed it.

    Args:
        document: The hierarchy of the file: who made the graph, and which argument each of its inputs is.
        model: The model. It stays as it was.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        wanted: The names of the graph's inputs, weights aside.

    Attributes:
        tensors: For each of the wanted inputs that there is a tensor for, that tensor.
        missing: The wanted inputs that there is none for.
        why: Why the exporter's own preparation does not give them; empty where it has none.
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
        """What is missing, and what to do."""
        said = f"nothing was given for {', '.join(map(repr, self.missing))}"
        if self.why:
            said += f", which transformers' exporter computes from the other inputs, and now cannot ({self.why})"
        return f"{said}: give the inputs that the file was exported with, by name"


def _root(document: HierarchyDocument) -> CallRecord | None:
    return next((call for call in document.calls if call.id == str(ROOT_CALL)), None)


def _by_name(arguments: Sequence[ForwardArgument], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    positional = [argument.name for argument in arguments if argument.kind.startswith("positional")]
    return {**dict(zip(positional, args, strict=False)), **kwargs}


def _prepared(model: torch.nn.Module, kwargs: dict[str, Any]) -> tuple[dict[str, torch.Tensor], str]:
    """The inputs as transformers' exporter has them before it traces the model, or why it cannot."""
    _, copied = copied_inputs((), kwargs)
    with TORCH_LOCK, preserved_state(model), buffers_restored(model), evaluation_mode(model), torch.no_grad():
        try:
            made = prepared_inputs(model, copied)
        except Exception as error:  # noqa: BLE001  whatever a model raises: its inputs stay as they are
            return {}, " ".join(f"{type(error).__name__}: {error}".split())
    return {name: tensor for key, value in made.items() for name, tensor in tensors_in(value, key)}, ""
