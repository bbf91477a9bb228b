"""MUST-002: which modules show in tags, and who decides it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from tests.support.module_trees import Norm, made, tags_of, tree_of
from torch import nn

import modelexport
from modelexport.capture.module_tree import qualified_name
from modelexport.errors import InputError
from modelexport.hierarchy.modules import (
    ModuleInfo,
)
from modelexport.hierarchy.tags import DEFAULT_TORCH_NN_EXCEPTIONS, TagView

NORMS_AND_EMBEDDING = {
    *("LayerNorm", "GroupNorm", "Embedding"),
    *(f"{kind}Norm{axes}d" for kind in ("Batch", "Instance") for axes in (1, 2, 3)),
}


def torch_nn_modules() -> dict[str, ModuleInfo]:
    """Every module class that torch.nn has, as the tree of a model would show it."""
    classes = {name: cls for name, cls in vars(nn).items() if isinstance(cls, type) and issubclass(cls, nn.Module)}
    return {name: ModuleInfo("x", cls.__name__, qualified_name(cls)) for name, cls in classes.items()}


@pytest.mark.must
def test_of_all_torch_nn_classes_only_the_norms_and_embedding_show_by_default() -> None:
    modules = torch_nn_modules()
    assert len(modules) > 100
    assert {name for name, module in modules.items() if TagView.create().shows(module)} == NORMS_AND_EMBEDDING
    assert set(DEFAULT_TORCH_NN_EXCEPTIONS) == NORMS_AND_EMBEDDING


@pytest.mark.must
@pytest.mark.parametrize(
    ("exceptions", "shown"),
    [
        ("all", set(torch_nn_modules())),
        ("none", set()),
        ([], set()),
        (["Linear", "Conv2d"], {"Linear", "Conv2d"}),
        (("LayerNorm",), {"LayerNorm"}),
        ({"Linear"}, {"Linear"}),
        (iter(["Linear"]), {"Linear"}),
    ],
    ids=["all", "none", "empty list", "list", "tuple", "set", "iterator"],
)
def test_callers_choose_which_torch_nn_classes_show(exceptions: object, shown: set[str]) -> None:
    view = TagView.create(exceptions)  # type: ignore[arg-type]
    assert {name for name, module in torch_nn_modules().items() if view.shows(module)} == shown


@pytest.mark.must
def test_users_subclass_of_a_torch_nn_class_shows_whatever_the_exceptions() -> None:
    model = tree_of("Net", norm=Norm(1), act=made("MyAct", nn.ReLU)(), plain=nn.ReLU())
    for exceptions in (None, "none", []):
        tags = tags_of(model, torch_nn_exceptions=exceptions)
        assert tags == {"": "/Net", "norm": "/Net/Norm", "act": "/Net/MyAct", "plain": "/Net"}


@pytest.mark.must
@pytest.mark.parametrize("exceptions", [None, "none", "all"])
def test_root_shows_even_where_its_class_is_hidden(exceptions: str | None) -> None:
    model = nn.Sequential(made("Block")(), nn.Sequential(made("Block")()))
    tags = tags_of(model, torch_nn_exceptions=exceptions, exclude=["torch.nn.*"])
    assert tags == {
        "": "/Sequential",
        "0": "/Sequential/Block.0",
        "1": "/Sequential",
        "1.0": "/Sequential/Block.1.0",
    }


@pytest.mark.must
def test_include_patterns_show_torch_nn_classes_that_the_exceptions_hide() -> None:
    model = tree_of("Net", fc=nn.Linear(1, 1), act=nn.ReLU())
    tags = tags_of(model, torch_nn_exceptions="none", include=["torch.nn.modules.linear.*"])
    assert (tags["fc"], tags["act"]) == ("/Net/Linear", "/Net")


@pytest.mark.must
def test_exclude_patterns_hide_any_class_and_win_over_include() -> None:
    model = tree_of("Net", block=tree_of("Block", norm=nn.LayerNorm(1)), other=made("Block", module="elsewhere")())
    tags = tags_of(model, include=["*.LayerNorm"], exclude=["elsewhere.*", "*.LayerNorm"])
    assert tags == {"": "/Net", "block": "/Net/Block", "block.norm": "/Net/Block", "other": "/Net"}


@pytest.mark.must
def test_patterns_are_on_the_qualified_name_and_case_counts() -> None:
    model = tree_of("Net", block=made("Block", module="here.blocks")())
    assert tags_of(model, exclude=["Block"])["block"] == "/Net/Block"
    assert tags_of(model, exclude=["HERE.*"])["block"] == "/Net/Block"
    assert tags_of(model, exclude=["here.*"])["block"] == "/Net"


@pytest.mark.must
def test_module_below_a_hidden_one_hangs_from_the_nearest_visible_ancestor() -> None:
    inner = nn.Sequential(nn.ModuleDict({"x": made("Block")()}))
    assert tags_of(tree_of("Net", stem=inner))["stem.0.x"] == "/Net/Block"
    assert tags_of(tree_of("Net", stem=inner), torch_nn_exceptions="all")["stem.0.x"] == (
        "/Net/Sequential/ModuleDict.0/Block"
    )


@pytest.mark.must
def test_filtering_changes_the_tags_of_an_export_and_nothing_else(tmp_path: Path) -> None:
    model = tree_of("Net", fc=nn.Linear(4, 4), act=nn.Sigmoid(), norm=nn.LayerNorm(4))
    model.forward = lambda x: model.norm(model.act(model.fc(x)))  # type: ignore[method-assign]
    shown, hidden = (
        modelexport.export_model(model, torch.randn(2, 4), tmp_path / f"{view}.onnx", torch_nn_exceptions=view).document
        for view in ("all", "none")
    )
    assert {node.tag for node in hidden.nodes} == {"/Net"}
    assert {node.tag for node in shown.nodes} == {"/Net/Linear", "/Net/Sigmoid", "/Net/LayerNorm"}
    assert {node.module for node in hidden.nodes} == {"fc", "act", "norm"}
    evidence = [[(node.id, node.module, node.kind, node.reason) for node in doc.nodes] for doc in (shown, hidden)]
    assert evidence[0] == evidence[1]


@pytest.mark.must
@pytest.mark.parametrize("wrong", ["Linear", "ALL", "", "Linear,Conv2d"])
def test_a_single_string_of_exceptions_is_refused_with_the_list_to_write_instead(wrong: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"[{wrong!r}]")):
        TagView.create(wrong)


@pytest.mark.must
@pytest.mark.parametrize("option", ["include", "exclude"])
def test_a_lone_pattern_is_refused_or_taken_whole(option: str) -> None:
    hidden_by_default, shown_by_default = ModuleInfo("x", "ReLU", "torch.nn.ReLU"), ModuleInfo("y", "Own", "own.Own")
    try:
        view = TagView.create(**{option: "nothing.like.*"})
    except InputError:
        return
    assert not view.shows(hidden_by_default)
    assert view.shows(shown_by_default)
