"""Every private part has a test that fails by name, and a line in the documentation."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from pathlib import Path

import pytest
from tests.unit.torch_support import (
    test_canaries_export,
    test_canaries_jit,
    test_canaries_torch,
    test_canaries_transformers,
)
from tests.unit.torch_support.test_broken_parts import PARTS

from modelexport import torch_support
from modelexport.errors import UnsupportedLibraryError
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
