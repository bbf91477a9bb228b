"""Every private part has a test that fails by name, and a line in the documentation."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.unit.torch_support import (
    test_canaries_export,
    test_canaries_jit,
    test_canaries_torch,
    test_canaries_transformers,
)
from tests.unit.torch_support.test_broken_parts import PARTS

import modelexport
from modelexport import torch_support
from modelexport.capture.fx.trace_recorder import TraceRecorder
from modelexport.capture.torchscript import jit_graph
from modelexport.errors import ContractError, UnsupportedLibraryError
from modelexport.torch_support.private_part import SEEN_ON, Part

CANARIES = (test_canaries_export, test_canaries_jit, test_canaries_torch, test_canaries_transformers)
# Functions that use no private API themselves.
HELPERS = {"storage_of", "tensors_among"}
DOCUMENT = Path(__file__).parents[3] / "docs" / "private-parts.md"


def test_every_function_around_a_private_part_has_a_test_of_its_name() -> None:
    names = [info.name for info in pkgutil.iter_modules(torch_support.__path__) if "private" in info.name]
    functions = {
        name
        for module in (importlib.import_module(f"{torch_support.__name__}.{name}") for name in names)
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    canaries = {name.removeprefix("test_") for module in CANARIES for name in vars(module)}
    assert functions - HELPERS - canaries == set()


def test_documentation_lists_every_part_with_its_reason_and_releases() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    listed = [line for line in text.splitlines() if line.startswith("| `")]
    assert listed == [f"| `{part.path}` | {part.reason} |" for _, part in sorted(PARTS.items())]
    for library, releases in SEEN_ON.items():
        assert f"{library} {', '.join(releases)}" in text


def test_error_for_a_missing_part_names_it_and_the_releases_that_have_it() -> None:
    with pytest.raises(UnsupportedLibraryError, match=r"torch .* has no torch\._C\._no_such_pass.*2\.13\.0") as caught:
        Part("torch._C._no_such_pass", "").find()
    assert caught.value.part == "torch._C._no_such_pass"
    with pytest.raises(UnsupportedLibraryError, match=r"torch\._no_such_package\.part"):
        Part("torch._no_such_package.part", "").find()
    with pytest.raises(UnsupportedLibraryError, match=r"torch\.Tensor\._no_such_counter"):
        Part("torch.Tensor._no_such_counter", "").of(object())


def test_error_for_a_changed_part_says_how() -> None:
    leaves = Part("torch.utils._pytree.tree_leaves", "")
    with pytest.raises(
        UnsupportedLibraryError, match=r"another torch\.utils\._pytree\.tree_leaves .*list instead of dict"
    ):
        leaves.call(dict, [1])
    with pytest.raises(UnsupportedLibraryError, match="unexpected keyword argument"):
        leaves.call(list, [1], no_such_argument=1)


def test_error_of_code_that_a_part_calls_is_not_an_error_of_the_part() -> None:
    def fail(leaf: object) -> object:
        raise TypeError("ours")

    with pytest.raises(TypeError, match="ours"):
        Part("torch.utils._pytree.tree_map", "").call(list, fail, [1])


LEAVES = Part("torch.utils._pytree.tree_leaves", "")


def test_error_of_our_own_function_around_a_part_is_reported_as_ours() -> None:
    def fail(original: Callable[..., object], value: object) -> object:
        raise KeyError("forgotten")

    with (
        pytest.raises(ContractError, match=r"watching torch\.utils.* KeyError: 'forgotten': a bug in modelexport"),
        LEAVES.called_through(fail),
    ):
        torch.utils._pytree.tree_leaves([1])


def test_arguments_that_our_function_around_a_part_does_not_take_are_a_change_of_the_library() -> None:
    def around(original: Callable[..., object], *, renamed: object) -> object:
        raise AssertionError("not called")

    with pytest.raises(UnsupportedLibraryError, match=r"another .*takes 1 positional"), LEAVES.called_through(around):
        torch.utils._pytree.tree_leaves([1])


def test_error_of_the_part_itself_passes_our_function_around_it() -> None:
    with pytest.raises(TypeError, match="no_such_argument"), LEAVES.called_through(lambda run, *a, **k: run(*a, **k)):
        torch.utils._pytree.tree_leaves([1], no_such_argument=1)


@pytest.mark.parametrize("strategy", ["htp", "fx"])
def test_bug_of_ours_while_an_exporter_is_watched_is_not_blamed_on_torch(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("forgotten")

    monkeypatch.setattr(jit_graph, "_read", fail)
    monkeypatch.setattr(TraceRecorder, "_export", fail)
    with pytest.raises(ContractError, match="KeyError: 'forgotten': a bug in modelexport"):
        modelexport.export_model(torch.nn.Linear(1, 1), torch.ones(1, 1), tmp_path / "m.onnx", strategy=strategy)
