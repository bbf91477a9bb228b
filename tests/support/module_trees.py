"""Module trees and their tags, for tests of both."""

from __future__ import annotations

from torch import nn

from modelexport.capture.module_tree import read_module_tree
from modelexport.hierarchy.tags import TagScheme, TagView


def made(name: str, base: type[nn.Module] = nn.Module, module: str = __name__) -> type[nn.Module]:
    """A class of that name, which need not be one that Python's grammar allows."""
    return type(name, (base,), {"__module__": module})


class Norm(nn.LayerNorm):
    """A user's own kind of a torch.nn class."""


def tree_of(root: str, **children: nn.Module) -> nn.Module:
    module = made(root)()
    for name, child in children.items():
        module.add_module(name, child)
    return module


def tags_of(model: nn.Module, **options: object) -> dict[str, str]:
    tree = read_module_tree(model)
    scheme = TagScheme(tree, TagView.create(**options))  # type: ignore[arg-type]
    return {module.path: scheme.module_tag(module.path) for module in tree}
