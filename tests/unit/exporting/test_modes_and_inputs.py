"""In which mode a model is exported, and that its inputs are as before even where forward changes them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from tests.support.export_outcomes import OUTCOMES, strategies
from tests.support.meddlers import example, net
from tests.support.untouched import files
from torch import nn

from modelexport.errors import StrategyIncompatibleError
from modelexport.exporting.export import export_model


def operators(path: Path) -> set[str]:
    return {node.op_type for node in onnx.load(path).graph.node}


@pytest.mark.parametrize("strategy", strategies())
def test_graph_of_a_model_in_train_mode_is_that_of_the_model_in_eval_mode(strategy: str, tmp_path: Path) -> None:
    contents = []
    for mode in (True, False):
        model = net(meddling=False).train(mode)
        export_model(model, example(), tmp_path / "model.onnx", strategy=strategy, overwrite=True)
        contents.append(files(tmp_path))
    assert contents[0] == contents[1]
    assert "Dropout" not in operators(tmp_path / "model.onnx")


@pytest.mark.parametrize("strategy", [name for name in strategies() if name != "usage_based"])
def test_training_keeps_the_mode_of_each_module(strategy: str, tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.Dropout(0.5)).train()
    model[2].eval()
    result = export_model(model, example(), tmp_path / "model.onnx", training=True, strategy=strategy)
    assert [node.module for node in result.document.nodes if node.op == "Dropout"] == ["1"]
    assert [module.training for module in model] == [True, True, False]


def test_values_that_change_with_each_run_are_refused_as_evidence(tmp_path: Path) -> None:
    with pytest.raises(StrategyIncompatibleError, match="training mode"):
        export_model(nn.Dropout(0.5).train(), example(), tmp_path / "m.onnx", training=True, strategy="usage_based")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("strategy", [name for name in strategies() if name != "usage_based"])
def test_training_does_not_warn_of_what_was_asked_for(strategy: str, tmp_path: Path) -> None:
    export_model(nn.Dropout(0.5).train(), example(), tmp_path / "model.onnx", training=True, strategy=strategy)


class Greedy(nn.Module):
    """Changes everything it is given."""

    def __init__(self, act: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.act = act

    def forward(self, x: torch.Tensor, rows: list[torch.Tensor], *, options: dict[str, torch.Tensor]) -> torch.Tensor:
        x.add_(1)
        rows.append(rows[0] * options.pop("scale"))
        options["extra"] = x
        return self.act(rows[-1] + x)


@pytest.mark.parametrize("outcome", ["succeeds", "fails in forward", "fails in conversion"])
@pytest.mark.parametrize("strategy", strategies())
def test_inputs_are_as_before_even_where_forward_changes_them(strategy: str, outcome: str, tmp_path: Path) -> None:
    x, row, scale = example(), torch.ones(2, 4), torch.full((4,), 3.0)
    rows, options = [row], {"scale": scale}
    named: dict[str, Any] = {"options": options}
    inputs = [x, rows, named]
    contents = [tensor.clone() for tensor in (x, row, scale)]
    model, error = Greedy(OUTCOMES[outcome].act), OUTCOMES[outcome].error
    if error is None:
        export_model(model, inputs, tmp_path / "model.onnx", strategy=strategy, overwrite=True)
    else:
        with pytest.raises(error):
            export_model(model, inputs, tmp_path / "model.onnx", strategy=strategy, overwrite=True)
    for tensor, content in zip((x, row, scale), contents, strict=True):
        assert torch.equal(tensor, content)
        assert not tensor.requires_grad
    assert [id(value) for value in inputs] == [id(x), id(rows), id(named)]
    assert [id(value) for value in rows] == [id(row)]
    assert named == {"options": options}
    assert {name: id(value) for name, value in options.items()} == {"scale": id(scale)}
