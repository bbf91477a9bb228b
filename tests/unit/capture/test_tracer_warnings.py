"""Warnings of exporters as notes: which are kept, and how many are told."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import modelexport
from modelexport.capture.source_places import SourcePlace
from modelexport.capture.tracer_warnings import Specialization, TracerWarning, recorded_warnings


def test_first_twenty_are_listed_and_the_rest_is_counted() -> None:
    warned = tuple(TracerWarning("a size", SourcePlace("net.py", line, ""), True) for line in range(25))
    notes = Specialization(warned, ()).notes()
    assert len(notes) == 21
    assert notes[-1] == "and 5 more warnings of the exporter"


def test_values_of_the_inputs_come_before_sizes() -> None:
    warned = tuple(TracerWarning("a value", SourcePlace("net.py", line, ""), True) for line in range(25))
    found = Specialization(warned, (SourcePlace("net.py", 24, ""),))
    assert found.by_inputs == (SourcePlace("net.py", 24, ""),)
    assert "net.py:24" in found.notes()[0]


def test_every_value_counts_where_the_reads_are_not_known() -> None:
    warned = (TracerWarning("a value", SourcePlace("net.py", 3, ""), True),)
    found = Specialization(warned, "RuntimeError: no")
    assert found.by_inputs == (SourcePlace("net.py", 3, ""),)
    assert "watching a run of the model failed with RuntimeError: no" in found.notes()[0]
    assert "may depend on the inputs" in found.notes()[1]
    assert not Specialization((), "RuntimeError: no").is_empty


def test_note_says_that_the_reads_of_a_model_are_not_known(tmp_path: Path) -> None:
    class OnlyWithoutModes(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch._C._len_torch_function_stack():
                raise RuntimeError("not while it is watched")
            return x.relu()

    result = modelexport.export_model(OnlyWithoutModes(), torch.ones(2), tmp_path / "m.onnx", strategy="htp")
    assert [note for note in result.notes if "failed with RuntimeError: not while it is watched" in note]


def test_warnings_of_the_model_itself_and_of_deprecations_stay_out() -> None:
    with recorded_warnings(nn.Linear(1, 1)) as found:
        warnings.warn("the model's own", UserWarning, stacklevel=1)
        warnings.warn("deprecated", DeprecationWarning, stacklevel=1)
        warnings.warn("fixed. Advice follows.", torch.jit.TracerWarning, stacklevel=1)
    assert [warning.text for warning in found] == ["fixed"]


@pytest.mark.parametrize(("used", "count"), [("batch", 0), ("rows", 1)])
def test_axis_name_that_torch_uses_anyway_is_not_told(used: str, count: int) -> None:
    text = "# The axis name: batch will not be used, since it shares the same shape constraints with another axis: "
    text += f"{used}."
    code = compile(f"import warnings; warnings.warn({text!r}, UserWarning, stacklevel=1)", "shapes.py", "exec")
    with recorded_warnings(nn.Linear(1, 1)) as found:
        exec(code, {"__name__": "torch.onnx._internal.exporter._dynamic_shapes"})
    assert len(list(found)) == count


def test_warnings_of_other_threads_go_where_they_went_before(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(warnings, "showwarning", lambda message, *_: shown.append(str(message)))
    with recorded_warnings(nn.Linear(1, 1)) as found:
        thread = threading.Thread(target=lambda: warnings.warn("elsewhere", torch.jit.TracerWarning, stacklevel=1))
        thread.start()
        thread.join()
    assert shown == ["elsewhere"]
    assert list(found) == []
