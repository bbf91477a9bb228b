"""The strategy interface: turn a model and inputs into a capture, or raise an error with the reason."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from modelexport.attempt_report import PLAIN, Variant
from modelexport.capture import Capture
from modelexport.torch_support import CopyOnWrite


@dataclasses.dataclass(frozen=True)
class CaptureRequest:
    """The model to capture, with its inputs and options.

    Attributes:
        model: The model, already in the mode to export it in.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        options: Further arguments for the exporter, as `torch.onnx.export` names them.
        exporter: The exporter that creates the graph: one of the strategy's `exporters`.
        training: Whether to keep the mode the model is in; otherwise it is in evaluation mode.
        allow_specialization: Whether to fall back to a trace that turns values of the inputs into constants.
        written: Copies of the weights that forward overwrites, from the run before the first attempt.
        variant: How to call the exporter: a failed attempt names the next one (`StrategyIncompatibleError.retry`).
        result_names: The names of the result's tensors, for exporters that would invent names for the outputs.
        axis_options: Returns the options that tell an exporter, given by name, the dynamic axes.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    exporter: str
    training: bool = False
    allow_specialization: bool = False
    written: CopyOnWrite | None = None
    variant: Variant = PLAIN
    result_names: tuple[str, ...] = ()
    axis_options: Callable[[str], Mapping[str, Any]] = dataclasses.field(default_factory=lambda: lambda _: {})

    @property
    def named_options(self) -> Mapping[str, Any]:
        """The options, with the names of the outputs."""
        return {**self.options, "output_names": list(self.result_names)} if self.result_names else self.options


class Strategy(ABC):
    """A source of evidence. Subclasses are final and stateless."""

    name: ClassVar[str]

    @abstractmethod
    def exporters(self, model: torch.nn.Module) -> tuple[str, ...]:
        """The exporters that can create the graph of this model, the preferred one first."""

    def last_variants(self, model: torch.nn.Module, exporter: str) -> tuple[Variant, ...]:
        """The variants to try with an exporter after all candidates failed, or gave files that are wrong."""
        return ()

    @abstractmethod
    def capture(self, request: CaptureRequest) -> Capture:
        """Export the graph once and record the evidence for its nodes.

        Raises:
            StrategyIncompatibleError: This strategy cannot export the model; `retry` is a variant that may succeed.
            InputError: No strategy can: the inputs do not fit the model.
        """
