"""What a strategy is: it turns a model and inputs into a capture, or says why it cannot."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from modelexport.capture import Capture


@dataclasses.dataclass(frozen=True)
class CaptureRequest:
    """What is to be exported.

    Attributes:
        model: The model, already in the mode it is to be exported in.
        args: Its positional example inputs.
        kwargs: Its example inputs by keyword.
        options: Further arguments for the exporter, as `torch.onnx.export` names them.
        exporter: Who is to make the graph: one of the strategy's exporters.
        training: Whether the model is to be exported in the mode it is in, training included.
        allow_specialization: Whether tracing may be fallen back to where it fixes values that depend on the inputs.
    """

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    options: Mapping[str, Any]
    exporter: str
    training: bool = False
    allow_specialization: bool = False


class Strategy(ABC):
    """One way to get the evidence. Subclasses are final and hold no state."""

    name: ClassVar[str]

    @abstractmethod
    def exporters(self, model: torch.nn.Module) -> tuple[str, ...]:
        """Who can make the graph for this model, the first choice first."""

    @abstractmethod
    def capture(self, request: CaptureRequest) -> Capture:
        """The graph and the evidence for its nodes.

        Raises:
            StrategyIncompatibleError: This strategy cannot serve the model.
            InputError: No strategy could: the inputs do not fit the model.
        """
