"""Owners of nodes that exporters removed, merged, or fused into nodes of other calls."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import modelexport
from modelexport.hierarchy.document import HierarchyDocument, NodeRecord
from modelexport.verification.contamination_by_value import validate_owners_by_value

pytestmark = pytest.mark.integration


def exported(model: nn.Module, inputs: tuple[torch.Tensor, ...], folder: Path, strategy: str) -> HierarchyDocument:
    """The document of an export that the values of the model do not contradict."""
    path = folder / f"{strategy}.onnx"
    result = modelexport.export_model(model.eval(), inputs, path, strategy=strategy)
    assert result.coverage == 1.0
    assert validate_owners_by_value(path, model, inputs).findings == ()
    document: HierarchyDocument = result.document
    return document


def node(document: HierarchyDocument, output: str) -> NodeRecord:
    return next(record for record in document.nodes if record.id == output)


class LaidOutAtTheEnd(nn.Module):
    """Reshapes its result to the shape that it already has."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x).view(x.shape)


def test_output_behind_a_removed_reshape_keeps_its_owner(tmp_path: Path) -> None:
    torch.manual_seed(0)
    document = exported(LaidOutAtTheEnd(), (torch.randn(2, 4),), tmp_path, "fx")
    (norm,) = (call for call in document.calls if call.id == "norm")
    result = norm.outputs[0].tensor
    assert result is not None
    assert (node(document, result).module, node(document, result).contributors) == ("norm", ())


class Masked(nn.Module):
    """Computes a mask itself, and selects rows by it; the shape depends on the input values."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        picked = torch.zeros_like(x)
        mask = kinds == 1
        picked[mask] = self.lin(x[mask])
        return x + picked


class TwiceMasked(nn.Module):
    """Both calls compute the same mask."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Masked(), Masked()

    def forward(self, x: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.two(self.one(x, kinds), kinds)
        return y


@pytest.mark.parametrize("strategy", ["fx", "htp"])
def test_node_merged_from_two_calls_names_both(tmp_path: Path, strategy: str) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(3, 5, 4), torch.tensor([[0, 1, 1, 0, 1]] * 3))
    document = exported(TwiceMasked(), inputs, tmp_path, strategy)
    shared = [record for record in document.nodes if record.kind == "merged"]
    assert shared
    assert all({record.module, *record.contributors} >= {"one", "two"} for record in shared if record.module == "one")


class Flagged(nn.Module):
    """Receives a flag that it does not use, and computes the same mask as other modules."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, mask: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
        rows = (mask != 0).unsqueeze(-1)
        y: torch.Tensor = self.lin(x.masked_fill(rows, 0.0)).index_select(-1, torch.tensor([0, 2, 1, 3]))
        return y


class FlaggedTwice(nn.Module):
    """Passes an unused argument, which is not in the graph; its constant equals one of a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Flagged(), Flagged()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        flags = mask < 0
        return self.two(self.one(x.index_select(-1, torch.tensor([0, 2, 1, 3])), mask, flags), mask, flags)


def test_nodes_merged_by_the_torchscript_exporter_name_all_their_calls(tmp_path: Path) -> None:
    torch.manual_seed(0)
    inputs = (torch.randn(2, 3, 4), torch.tensor([[0.0, 1.0, 0.0]] * 2))
    document = exported(FlaggedTwice(), inputs, tmp_path, "htp")
    masks = [record for record in document.nodes if record.module == "one" and record.contributors == ("two",)]
    assert masks
    assert any(record.module == "" and {"one", "two"} & {*record.contributors} for record in document.nodes)


class Padded(nn.Module):
    """Pads the input of its convolution, and also uses the padded tensor itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = nn.functional.pad(x, (1, 1))
        return self.conv(wide), wide * 2


def test_convolution_fused_with_the_padding_of_its_caller_names_the_caller(tmp_path: Path) -> None:
    torch.manual_seed(0)
    document = exported(nn.Sequential(Padded()), (torch.randn(2, 4, 5),), tmp_path, "fx")
    (taken_up,) = (record for record in document.nodes if record.module == "0.conv")
    assert (taken_up.kind, taken_up.contributors) == ("fused", ("0",))


class TableNormed(nn.Module):
    """Passes the weights of one submodule to another."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.norm = nn.Embedding(5, 4), nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.norm(self.table.weight).T


def test_node_that_consumes_a_weight_of_another_module_keeps_its_owner(tmp_path: Path) -> None:
    torch.manual_seed(0)
    document = exported(nn.Sequential(nn.Sequential(TableNormed())), (torch.randn(3, 4),), tmp_path, "fx")
    assert {record.module for record in document.nodes} == {"0.0.norm", "0.0"}


class Gate(nn.Module):
    """Computes the same as its caller."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.lin(x.sigmoid())
        return y


class ReturningWhatItsModuleNeeds(nn.Module):
    """Returns the output of a node that was merged with one of its submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate = nn.Linear(4, 4), Gate()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        h = self.first(x)
        open_ = h.sigmoid()
        return self.gate(h), open_


def test_owner_of_a_shared_node_may_be_the_call_that_returns_its_output(tmp_path: Path) -> None:
    torch.manual_seed(0)
    document = exported(ReturningWhatItsModuleNeeds(), (torch.randn(3, 4),), tmp_path, "fx")
    (shared,) = (record for record in document.nodes if record.kind == "merged")
    assert {shared.module, *shared.contributors} == {"", "gate"}


class Counting(nn.Module):
    """Returns a tensor and numbers that depend on values; during tracing, these are symbols."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
        return self.lin(x), (x > 0).sum(0).tolist()


class UsingCounts(nn.Module):
    """Uses the numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.counting = Counting()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, counts = self.counting(x)
        return y * counts[0] + counts[1]


def test_numbers_that_a_call_returns_are_not_boundary_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    result = modelexport.export_model(UsingCounts(), torch.randn(3, 4), tmp_path / "m.onnx", strategy="fx")
    (counting,) = (call for call in result.document.calls if call.id == "counting")
    assert [tensor.name for tensor in counting.outputs] == ["0"]


class ConvNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


class SplitForTwo(nn.Module):
    """Only fused nodes consume the second part of a split, whose outputs the exporter renames."""

    def __init__(self) -> None:
        super().__init__()
        self.a = ConvNorm()
        self.b = ConvNorm()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, two = x.split(2, dim=1)
        return one + self.a(two) + self.b(two)


def test_owner_is_both_modules_when_conv_and_batchnorm_after_a_split_are_fused(tmp_path: Path) -> None:
    torch.manual_seed(0)
    document = exported(SplitForTwo(), (torch.randn(1, 4, 5, 5),), tmp_path, "fx")
    convs = {record.module: record.contributors for record in document.nodes if record.contributors}
    assert convs == {"a.norm": ("a.conv",), "b.norm": ("b.conv",)}
    inputs = {call.id: [tensor.tensor for tensor in call.inputs] for call in document.calls}
    assert inputs["a"] == inputs["b"] == inputs["a.conv"] == inputs["b.conv"] != [None]


class PaddedConv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(nn.functional.pad(x, (1, 1, 1, 1)))


class SplitForPadded(nn.Module):
    """The padding is fused with the convolution after it, which then consumes the renamed part of the split."""

    def __init__(self) -> None:
        super().__init__()
        self.padded = PaddedConv()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one, _ = x.sin().chunk(2, dim=1)
        return self.padded(one)


@pytest.mark.parametrize("dynamic", [False, True])
def test_owner_of_a_split_is_its_call_where_padding_after_it_is_fused(tmp_path: Path, *, dynamic: bool) -> None:
    torch.manual_seed(0)
    axes = {"dynamic_shapes": ({0: "batch"},)} if dynamic else {}
    result = modelexport.export_model(
        SplitForPadded(), torch.randn(2, 4, 5, 5), tmp_path / "m.onnx", strategy="fx", **axes
    )
    owners = {record.id: (record.module, record.contributors) for record in result.document.nodes}
    inputs = {call.id: call.inputs[0].tensor for call in result.document.calls}
    assert inputs["padded.conv"] is None
    assert owners[inputs["padded"] or ""] == ("", ())
    assert ("padded.conv", ("padded",)) in owners.values()


class Padding(nn.Module):
    """Pads by nothing, and so passes its input on."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(nn.functional.pad(x, (0, 0)))


class Halved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.padding = Padding()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.padding(torch.chunk(x, 2, dim=1)[0])


def test_node_before_a_removed_no_op_of_another_call_keeps_its_owner(tmp_path: Path) -> None:
    document = exported(Halved(), (torch.rand(2, 4, 5),), tmp_path, "fx")
    assert [(record.module, record.contributors) for record in document.nodes] == [("", ()), ("padding.conv", ())]
    inputs = {call.id: call.inputs[0].tensor for call in document.calls}
    assert inputs["padding"] == inputs["padding.conv"] == document.nodes[0].id


class ScaledByOne(nn.Module):
    """Scales the input and the output of its module, by one."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x.sin() / 1.0) * 1.0


def test_node_between_removed_no_ops_of_its_caller_keeps_its_owner(tmp_path: Path) -> None:
    document = exported(ScaledByOne(), (torch.rand(2, 4, 5),), tmp_path, "fx")
    assert [(record.module, record.contributors) for record in document.nodes] == [("", ()), ("conv", ())]
    assert [call.inputs[0].tensor for call in document.calls] == ["x", document.nodes[0].id]
