"""Recorded inputs and outputs of module calls: their names and their content."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.conftest import Exporter
from torch import nn

from modelexport.hierarchy.document import HierarchyDocument, ModuleRecord, Producer
from modelexport.hierarchy.modules import ForwardArgument
from modelexport.hierarchy.tags import TagView
from modelexport.verification.pytorch_run import (
    BoundaryKey,
    BoundaryRecorder,
    BoundaryRecording,
    Direction,
    control_flow_call,
)


def document_of(model: nn.Module, **arguments: tuple[str, ...]) -> HierarchyDocument:
    """A document with the modules and the names of their arguments by path."""
    return HierarchyDocument(
        schema_version=1,
        producer=Producer(),
        strategy="",
        exporter="",
        graph_hash="",
        tag_view=TagView(),
        modules=tuple(
            ModuleRecord(
                path=path,
                class_name=type(module).__name__,
                qualified_class="",
                tag="",
                visible=True,
                forward_arguments=tuple(ForwardArgument(name) for name in arguments.get(path or "root", ("x",))),
            )
            for path, module in model.named_modules()
        ),
        calls=(),
        nodes=(),
        tensors=(),
    )


def run(model: nn.Module, *args: Any, keep: Any = None, **arguments: tuple[str, ...]) -> BoundaryRecording:
    runner = BoundaryRecorder(model, document_of(model, **arguments), args, {})
    seen = runner.run().tensors
    return runner.run(seen if keep is None else keep)


@pytest.mark.xdist_group("nested_outputs")
def test_tensors_have_the_names_and_shapes_of_the_document(exported: Exporter) -> None:
    for name in ("nested_outputs", "shared_block"):
        ours = exported(name)
        seen = BoundaryRecorder(ours.example.model, ours.document, ours.args, ours.kwargs).run().tensors
        recorded = {
            BoundaryKey(call.id, side, tensor.name)
            for call in ours.document.calls
            for side, boundary in ((Direction.INPUT, call.inputs), (Direction.OUTPUT, call.outputs))
            for tensor in boundary
        }
        assert recorded == set(seen)
    assert BoundaryKey("blk@2", Direction.INPUT, "x") in recorded


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


class Splitting(nn.Module):
    def forward(self, x: torch.Tensor) -> Pair:
        return Pair(x[:1], x[1:])


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.same = nn.Identity()
        self.split = Splitting()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        left, right = self.split(self.same(x))
        x.add_(1)
        return self.same(x) + left + right


def test_content_is_stored_once_until_it_changes() -> None:
    found = run(Views(), torch.ones(2, 3))
    first = found.tensors[BoundaryKey("same", Direction.INPUT, "x")].number
    assert found.tensors[BoundaryKey("same", Direction.OUTPUT, "output")].number == first
    assert found.tensors[BoundaryKey("split", Direction.INPUT, "x")].number == first
    assert found.tensors[BoundaryKey("same@1", Direction.INPUT, "x")].number != first
    assert (
        found.values[BoundaryKey("same", Direction.INPUT, "x")]
        is found.values[BoundaryKey("split", Direction.INPUT, "x")]
    )
    # The values are those of the moment, though the memory was written to afterwards.
    assert (found.values[BoundaryKey("same", Direction.INPUT, "x")] == 2).all()
    assert (found.values[BoundaryKey("split", Direction.OUTPUT, "left")] == 2).all()
    assert (found.values[BoundaryKey("same@1", Direction.INPUT, "x")] == 3).all()


def test_only_requested_tensors_are_stored() -> None:
    wanted = BoundaryKey("split", Direction.OUTPUT, "right")
    found = run(Views(), torch.ones(2, 3), keep={wanted})
    assert list(found.values) == [wanted]
    assert len(found.tensors) > 5
    assert found.tensors[wanted].nbytes == 12


class Types(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "bfloat16": x.bfloat16(),
            "float16": x.half(),
            "float64": x.double(),
            "bool": x > 0,
            "int32": x.int(),
            "complex64": torch.complex(x, -x).conj(),
            "sparse": x.to_sparse(),
            "scalar": x.sum(),
            "empty": x[:0],
        }


def test_every_element_type_is_stored_as_the_matching_numpy_type() -> None:
    values = {key.name: array for key, array in run(Types(), torch.eye(2)).values.items()}
    kinds = {name: array.dtype.name for name, array in values.items()}
    assert kinds == {
        "x": "float32",
        "bfloat16": "float32",
        "float16": "float16",
        "float64": "float64",
        "bool": "bool",
        "int32": "int32",
        "complex64": "float32",
        "sparse": "float32",
        "scalar": "float32",
        "empty": "float32",
    }
    assert np.array_equal(values["sparse"], np.eye(2, dtype=np.float32))
    assert values["complex64"].shape == (2, 2, 2)
    assert (values["scalar"].shape, values["empty"].shape) == ((), (0, 2))
    assert run(Types(), torch.eye(2)).tensors[BoundaryKey("", Direction.OUTPUT, "bfloat16")].dtype == "bfloat16"


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x) + torch.rand_like(x)


def test_every_pass_starts_from_the_same_random_state_in_evaluation_mode() -> None:
    model = Random().train()
    runner = BoundaryRecorder(model, document_of(model), (torch.ones(100),), {})
    key = BoundaryKey("", Direction.OUTPUT, "output")
    before = torch.get_rng_state()
    first, second = (runner.run({key}).values[key] for _ in range(2))
    assert np.array_equal(first, second)
    assert (first < 2).all()
    assert torch.equal(torch.get_rng_state(), before)
    assert model.drop.training


class Catching(nn.Module):
    """Catches the exception of a submodule and continues."""

    class Failing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError

    def __init__(self) -> None:
        super().__init__()
        self.failing, self.same = self.Failing(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        try:
            x = self.failing(x)
        except ValueError:
            x = x + 1
        return self.same(x)


def test_call_that_raised_has_no_outputs_and_other_calls_have_theirs() -> None:
    seen = run(Catching(), torch.ones(2)).tensors
    assert BoundaryKey("failing", Direction.INPUT, "x") in seen
    assert not [key for key in seen if key.call == "failing" and key.direction is Direction.OUTPUT]
    assert BoundaryKey("same", Direction.OUTPUT, "output") in seen
    assert BoundaryKey("", Direction.OUTPUT, "output") in seen


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cell(x)
        _, rows = torch._higher_order_ops.scan(lambda c, row: (self.cell(row) + c, row * 2), torch.zeros(2), x, dim=0)
        return self.cell(rows)


def test_calls_in_control_flow_are_counted_separately() -> None:
    found = run(Body(), torch.ones(3, 2))
    assert found.calls["cell"] == 2
    # torch 2.9 and 2.11 run the body of a scan once more, for the shapes of its results.
    assert found.control_flow_calls["cell"] in (3, 4)
    assert found.values[BoundaryKey(control_flow_call("cell"), Direction.INPUT, "x")].shape == (2,)
    assert found.values[BoundaryKey("cell@1", Direction.INPUT, "x")].shape == (3, 2)


def test_modules_are_listed_once_for_all_forward_passes() -> None:
    class Counting(nn.Sequential):
        listed = 0

        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            Counting.listed += 1
            return super().named_modules(*args, **kwargs)

    model = Counting(*(nn.Identity() for _ in range(50)))
    names = [record.path for record in document_of(model).modules]
    assert len(names) == 51
    Counting.listed = 0
    BoundaryRecorder(model, document_of(model), (torch.ones(1),), {})
    assert Counting.listed <= 3
