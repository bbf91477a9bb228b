"""Every call of an exported file, extracted and run on what the PyTorch module got. The truth is eager PyTorch."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import torch

from modelexport.analysis.extraction.extractor import Extractor
from modelexport.analysis.extraction.submodel import Submodel
from modelexport.errors import ExtractionError
from tests.support.eager_calls import EagerCall, record_calls
from tests.support.value_check import plain_control_flow, run_onnx, watch

RTOL, ATOL = 1e-3, 1e-5


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came of one call that ran an operator in eager PyTorch.

    Attributes:
        call: The call.
        status: ``equal``, ``differs`` or ``refused``.
        detail: What differs, or why it was refused.
        reason: The kind of refusal.
        complete: Whether the file still has all tensors of the call's boundary.
        from_graph: Inputs that eager PyTorch did not pass, fed with what the whole ONNX model computes there.
        not_computed: Results that nothing in the file computes.
    """

    call: str
    status: str
    detail: str = ""
    reason: str = ""
    complete: bool = True
    from_graph: tuple[str, ...] = ()
    not_computed: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Truth:
    """What eager PyTorch did: what each call got and returned, and which calls ran an operator themselves."""

    calls: dict[str, EagerCall]
    ran: frozenset[str]


def eager_truth(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Truth:
    with plain_control_flow():
        calls = record_calls(copy.deepcopy(model), args, kwargs)
    return Truth(calls, watch(copy.deepcopy(model), args, kwargs).ran)


def run_submodel(submodel: Submodel, given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The submodel's outputs by name, from onnxruntime; inputs take the type that the submodel declares."""
    proto = ir.to_proto(submodel.model)
    onnx.checker.check_model(proto, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"])
    declared = {value.name: value.dtype for value in submodel.model.graph.inputs}
    feeds = {name: array.astype(declared[name].numpy()) for name, array in given.items()}
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def judge_extractions(path: Path, truth: Truth, feeds: dict[str, np.ndarray]) -> list[Outcome]:
    """What comes of extracting each call that ran an operator, itself or inside of it."""
    extractor = Extractor(path)
    document = extractor.document
    parents = {call.id: call.parent for call in document.calls}
    ran: set[str] = set()
    for call in truth.ran:
        current: str | None = call
        while current is not None and current not in ran:
            ran.add(current)
            current = parents.get(current)
    whole: dict[str, np.ndarray] = {}
    outcomes = []
    for record in document.calls:
        if record.id not in ran or record.id not in truth.calls:
            continue
        complete = all(tensor.tensor is not None for tensor in (*record.inputs, *record.outputs))
        try:
            submodel = extractor.extract(record)
        except ExtractionError as error:
            outcomes.append(Outcome(record.id, "refused", error.explanation, error.reason, complete))
            continue
        eager = truth.calls[record.id]
        missing = [port for port in submodel.inputs if port.argument not in eager.inputs]
        if missing and not whole:
            whole.update({**_stored(path), **feeds, **run_onnx(path, feeds, subgraphs=True)})
        given = {
            port.name: eager.inputs[port.argument] if port.argument in eager.inputs else whole[port.tensor]
            for port in submodel.inputs
        }
        made = run_submodel(submodel, given)
        wrong = _differences(submodel, made, eager.outputs)
        not_computed = set(eager.outputs) - {port.argument for port in submodel.outputs}
        outcomes.append(
            Outcome(
                record.id,
                "differs" if wrong else "equal",
                ", ".join(wrong),
                complete=complete,
                from_graph=tuple(port.name for port in missing),
                not_computed=tuple(sorted(not_computed)),
            )
        )
    return outcomes


def _differences(submodel: Submodel, made: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> list[str]:
    wrong = []
    known = {port.argument for port in submodel.outputs}
    for port in submodel.outputs:
        one = made[port.name].astype(np.float32)
        if port.argument not in expected:
            # pytree, which names the truth, has other names for what is inside of caches, or does not look into them:
            # then the values have to tell, where there are any.
            others = [array for name, array in expected.items() if name not in known and array.shape == one.shape]
            if others and not any(np.allclose(one, array, rtol=RTOL, atol=ATOL) for array in others):
                wrong.append(f"{port.name} is no result of the module")
            continue
        other = expected[port.argument]
        if one.shape != other.shape:
            wrong.append(f"{port.name} has shape {one.shape}, not {other.shape}")
        elif not np.allclose(one, other, rtol=RTOL, atol=ATOL, equal_nan=True):
            wrong.append(f"{port.name} is off by {np.abs(one - other).max():.2g}")
    return wrong


def _stored(path: Path) -> dict[str, np.ndarray]:
    graph = onnx.load(path).graph
    return {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
