"""`nn_module_stack`: the module calls that torch records for each FX node."""

from __future__ import annotations

import dataclasses
import re

import torch

from modelexport.capture.module_tree import qualified_name
from modelexport.torch_support.private_fx import module_stack_of

_NUMBERED_KEY = re.compile(r"(?P<module>.*)@(?P<count>[0-9]{1,9})", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class StackEntry:
    """One module call of a stack.

    Attributes:
        key: torch's key for the call; see `call_index`.
        path: The module's path in the traced model.
        class_name: The qualified name of the module's class.
    """

    key: str
    path: str
    class_name: str

    @property
    def index(self) -> int:
        """The number of earlier calls of the module."""
        return call_index(self.key, self.path)


def read_module_stack(node: torch.fx.Node) -> list[StackEntry]:
    """Return the module calls that were running when the node was traced, outermost first."""
    return [StackEntry(key, path, _class_name(cls)) for key, path, cls in module_stack_of(node)]


def call_index(key: str, name: str) -> int:
    """Return the number of earlier calls of a module, from the key of its stack entry.

    A key is a prefix and the module's name, or the module's `id()` in the process that traced it. From the second call
    on, ``@count`` follows. A module's own name may contain ``@`` as well.
    """
    numbered = _NUMBERED_KEY.fullmatch(key)
    if numbered is None or not (numbered["module"].endswith(name) or numbered["module"].isdigit()):
        return 0
    return int(numbered["count"])


def _class_name(cls: object) -> str:
    return qualified_name(cls) if isinstance(cls, type) else str(cls)
