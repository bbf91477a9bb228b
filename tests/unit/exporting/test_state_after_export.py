"""However an export ends, the model, torch, the process and the folder are as they were."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from pathlib import Path

import pytest
import torch
from tests.support.command_process import start
from tests.support.export_outcomes import OUTCOMES, Outcome, check_outcome, interrupt_at, strategies
from tests.support.meddlers import example, interrupt, net
from tests.support.untouched import changes, files, snapshot

from modelexport.errors import StrategyIncompatibleError
from modelexport.exporting.export import export_model
from modelexport.exporting.export_run import STEPS
from modelexport.torch_support.state_guard import preserved_state

# What the child does.
REPORT_SIGNAL = """
import sys
from pathlib import Path
from tests.support.export_outcomes import report_signal
report_signal(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("strategy", strategies())
def test_everything_is_as_before_when_an_export(strategy: str, outcome: str, folder: Path, reference: Path) -> None:
    end = OUTCOMES[outcome]
    if strategy == "usage_based" and end.options.get("training"):
        # What a model in training mode computes changes from run to run: such evidence is refused.
        end = dataclasses.replace(end, error=StrategyIncompatibleError)
    check_outcome(dataclasses.replace(end, options={**end.options, "strategy": strategy}), folder)
    if end.error is None:
        assert set(files(folder)) == {"model.onnx", "model_hierarchy.json"}  # and no data file of the old graph
    # torch keeps its tracing state in globals: the next export shows whether that too is as before.
    export_model(net(meddling=False, width=64), example(), folder / "model.onnx", external_data=True, overwrite=True)
    assert files(folder) == files(reference)


@pytest.mark.parametrize("finished", [False, True], ids=["begins", "ends"])
@pytest.mark.parametrize("step", STEPS)
def test_everything_is_as_before_when_an_observer_interrupts_as(step: str, finished: bool, folder: Path) -> None:
    check_outcome(Outcome(error=KeyboardInterrupt, options={"progress": interrupt_at(step, finished)}), folder)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for one process")
def test_everything_is_as_before_when_the_first_export_of_a_process_gets_a_signal(folder: Path) -> None:
    artifact = files(folder)
    with start(folder / "model.onnx", script=REPORT_SIGNAL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "tracing\n"
        child.send_signal(signal.SIGINT)
        said, complaints = child.communicate(timeout=120)
    assert child.returncode == 0, complaints
    assert json.loads(said) == []
    assert files(folder) == artifact
    assert not files(Path.cwd())


def test_preserved_state_puts_back_whatever_the_block_changed_before_it_failed() -> None:
    """Directly, because some of it torch puts back too when it traces."""
    model = net()
    before = snapshot(model)

    def meddle() -> None:
        with preserved_state(model):
            model.meddler(example())
            assert {"grad mode", "default dtype", "autocast", "stem: forward"} <= set(changes(before, snapshot(model)))
            interrupt()

    with pytest.raises(KeyboardInterrupt):
        meddle()
    assert changes(before, snapshot(model)) == []


def test_modes_that_the_user_has_set_stay_set(folder: Path) -> None:
    torch.use_deterministic_algorithms(True)
    torch.set_default_dtype(torch.float64)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        check_outcome(OUTCOMES["succeeds"], folder)
        assert torch.are_deterministic_algorithms_enabled()
