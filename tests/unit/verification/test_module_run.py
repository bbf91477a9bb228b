"""One watched forward pass: which tensors are seen where, under which names, and what is kept of them."""

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
from modelexport.verification.module_run import ModuleRun, ModuleRunner, Place, Side, body_call


def document_of(model: nn.Module, **arguments: tuple[str, ...]) -> HierarchyDocument:
    """A document that knows the modules and, by path, the names of their arguments."""
    return HierarchyDocument(
        schema_version=1,
        producer=Producer(),
        strategy="",
        exporter="",
        graph_hash="",
        tag_view=TagView(),
        modules=tuple(
            ModuleRecord(
                path,
                type(module).__name__,
                "",
                "",
                visible=True,
                forward_arguments=tuple(ForwardArgument(name) for name in arguments.get(path or "root", ("x",))),
            )
            for path, module in model.named_modules()
        ),
        calls=(),
        nodes=(),
        tensors=(),
    )


def run(model: nn.Module, *args: Any, keep: Any = None, **arguments: tuple[str, ...]) -> ModuleRun:
    runner = ModuleRunner(model, document_of(model, **arguments), args, {})
    seen = runner.run().seen
    return runner.run(seen if keep is None else keep)


@pytest.mark.xdist_group("nested_outputs")
def test_tensors_have_the_names_and_shapes_of_the_document(exported: Exporter) -> None:
    for name in ("nested_outputs", "shared_block"):
        ours = exported(name)
        seen = ModuleRunner(ours.specimen.model, ours.document, ours.args, ours.kwargs).run().seen
        recorded = {
            Place(call.id, side, tensor.name)
            for call in ours.document.calls
            for side, boundary in ((Side.INPUT, call.inputs), (Side.OUTPUT, call.outputs))
            for tensor in boundary
        }
        assert recorded == set(seen)
    assert Place("blk@2", Side.INPUT, "x") in recorded


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


def test_tensor_is_kept_once_until_it_is_changed() -> None:
    found = run(Views(), torch.ones(2, 3))
    first = found.seen[Place("same", Side.INPUT, "x")].number
    assert found.seen[Place("same", Side.OUTPUT, "output")].number == first
    assert found.seen[Place("split", Side.INPUT, "x")].number == first
    assert found.seen[Place("same@1", Side.INPUT, "x")].number != first
    assert found.values[Place("same", Side.INPUT, "x")] is found.values[Place("split", Side.INPUT, "x")]
    # The values are those of the moment, though the memory was written to afterwards.
    assert (found.values[Place("same", Side.INPUT, "x")] == 2).all()
    assert (found.values[Place("split", Side.OUTPUT, "left")] == 2).all()
    assert (found.values[Place("same@1", Side.INPUT, "x")] == 3).all()


def test_only_what_is_asked_for_is_kept() -> None:
    wanted = Place("split", Side.OUTPUT, "right")
    found = run(Views(), torch.ones(2, 3), keep={wanted})
    assert list(found.values) == [wanted]
    assert len(found.seen) > 5
    assert found.seen[wanted].nbytes == 12


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


def test_every_type_is_kept_as_numpy_has_it() -> None:
    values = {place.name: array for place, array in run(Types(), torch.eye(2)).values.items()}
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
    assert run(Types(), torch.eye(2)).seen[Place("", Side.OUTPUT, "bfloat16")].dtype == "bfloat16"


class Random(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(x) + torch.rand_like(x)


def test_every_pass_starts_from_the_same_random_state_in_evaluation_mode() -> None:
    model = Random().train()
    runner = ModuleRunner(model, document_of(model), (torch.ones(100),), {})
    place = Place("", Side.OUTPUT, "output")
    before = torch.get_rng_state()
    first, second = (runner.run({place}).values[place] for _ in range(2))
    assert np.array_equal(first, second)
    assert (first < 2).all()
    assert torch.equal(torch.get_rng_state(), before)
    assert model.drop.training


class Catching(nn.Module):
    """Goes on after a call of a child that failed."""

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


def test_call_that_failed_has_no_results_and_the_others_have_theirs() -> None:
    seen = run(Catching(), torch.ones(2)).seen
    assert Place("failing", Side.INPUT, "x") in seen
    assert not [place for place in seen if place.call == "failing" and place.side is Side.OUTPUT]
    assert Place("same", Side.OUTPUT, "output") in seen
    assert Place("", Side.OUTPUT, "output") in seen


class Body(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.cell(x)
        _, rows = torch._higher_order_ops.scan(lambda c, row: (self.cell(row) + c, row * 2), torch.zeros(2), x, dim=0)
        return self.cell(rows)


def test_calls_in_bodies_are_seen_and_counted_apart() -> None:
    found = run(Body(), torch.ones(3, 2))
    assert found.calls["cell"] == 2
    assert found.body_calls["cell"] == 3
    assert found.values[Place(body_call("cell"), Side.INPUT, "x")].shape == (2,)
    assert found.values[Place("cell@1", Side.INPUT, "x")].shape == (3, 2)


def test_modules_are_listed_once_however_many_there_are() -> None:
    class Counting(nn.Sequential):
        listed = 0

        def named_modules(self, *args: Any, **kwargs: Any) -> Any:
            Counting.listed += 1
            return super().named_modules(*args, **kwargs)

    model = Counting(*(nn.Identity() for _ in range(50)))
    names = [record.path for record in document_of(model).modules]
    assert len(names) == 51
    Counting.listed = 0
    ModuleRunner(model, document_of(model), (torch.ones(1),), {})
    assert Counting.listed <= 3
