"""How an export may end, and a check that everything is as before then."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from modelexport.errors import InputError, StrategyIncompatibleError
from modelexport.exporting.export import export_model
from modelexport.exporting.result import ProgressEvent
from modelexport.strategies.registry import default_registry
from tests.support.meddlers import example, fail, interrupt, net, succeed, untranslated, wait_for_a_signal
from tests.support.untouched import changes, files, snapshot


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How an export ends: the error it raises, and whether there is a new artifact then."""

    act: Callable[[torch.Tensor], torch.Tensor] = succeed
    error: type[BaseException] | None = None
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def interrupt_at(step: str, finished: bool) -> Callable[[ProgressEvent], object]:
    return lambda event: interrupt() if (event.step, event.finished) == (step, finished) else None


def check_outcome(outcome: Outcome, folder: Path, *, width: int = 4) -> None:
    """Export as told; afterwards everything is as before, but for a new artifact where the export succeeds."""
    model, x = net(outcome.act, width=width), example()
    content, artifact = x.clone(), files(folder)
    before = snapshot(model)
    if outcome.error is None:
        export_model(model, x, folder / "model.onnx", **{"overwrite": True, **outcome.options})
    else:
        with pytest.raises(outcome.error) as caught:
            export_model(model, x, folder / "model.onnx", **{"overwrite": True, **outcome.options})
        assert caught.type is outcome.error
    assert changes(before, snapshot(model)) == []
    assert torch.equal(x, content)
    assert not files(Path.cwd())
    if outcome.error is not None:
        assert files(folder) == artifact


OUTCOMES = {
    "succeeds": Outcome(),
    "succeeds in training mode": Outcome(options={"training": True}),
    "fails in forward": Outcome(fail, InputError),
    "fails in conversion": Outcome(untranslated, StrategyIncompatibleError),
    "is interrupted in forward": Outcome(interrupt, KeyboardInterrupt),
}


def strategies() -> list[str]:
    """The strategies by name."""
    return [strategy.name for strategy in default_registry()]


def report_signal(path: Path) -> None:
    """Export until an interrupt comes, and say what is not as before."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a process started in the background ignores it
    warnings.simplefilter("ignore")
    model = net(wait_for_a_signal)
    before = snapshot(model)
    try:
        export_model(model, example(), path, overwrite=True)
    except KeyboardInterrupt:
        sys.stdout.write(json.dumps(changes(before, snapshot(model))))
