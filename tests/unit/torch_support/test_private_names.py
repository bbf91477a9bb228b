"""Private names of torch and transformers are used only as a `Part`, in the `private` modules of `torch_support`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import modelexport

ROOT = Path(modelexport.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
LIBRARIES = ("torch", "transformers")
# Public packages whose contents are not: transformers documents none of what its exporters are made of.
INTERNAL = ("transformers.exporters",)
# Uses that are not looked up: a type, and the question whether a package is installed.
OTHER_USES = {
    "torch_support/private.py": {"torch._ops", "torch._ops.OpOverload"},
    "torch_support/transformers_private.py": {"transformers.exporters"},
}
# Names of Python's own objects, and the method that notebooks call.
OF_PYTHON = {"_fields", "_getframe", "_asdict", "_replace", "_exit", "_repr_html_"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def own_names(tree: ast.AST) -> set[str]:
    """The private names that a file itself defines: attributes of its classes, methods, functions, fields."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_self(node.value):
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return {name for name in found if is_private(name)}


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def findings(source: str) -> list[str]:
    """Every use of a private name of a library in a file.

    What an attribute belongs to cannot be told from the source: one that starts with an underscore is taken for a
    library's unless it is one of `self`, or the file itself defines such a name.
    """
    tree = ast.parse(source)
    own = own_names(tree)
    return [f"{line}: {name}" for line, name in _used(tree) if name.rpartition(".")[2] not in own]


def _used(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, a.name) for a in node.names if _is_library_s_private(a.name))
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from ((node.lineno, name) for name in names if _is_library_s_private(name))
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if (is_private(node.attr) and not _is_self(node.value) and node.attr not in OF_PYTHON) or (
                _is_library_s_private(dotted)
            ):
                yield node.lineno, dotted
        elif isinstance(node, ast.Call) and _is_lookup(node):
            texts = (a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str))
            for text in texts:
                if _is_library_s_private(text) or (text.isidentifier() and is_private(text) and text not in OF_PYTHON):
                    yield node.lineno, text


def _is_lookup(call: ast.Call) -> bool:
    name = ast.unparse(call.func).rpartition(".")[2]
    return name in ("getattr", "setattr", "hasattr", "delattr", "import_module", "find_spec")


def _is_library_s_private(dotted: str) -> bool:
    parts = dotted.split(".")
    if parts[0] not in LIBRARIES or not all(map(str.isidentifier, parts)):
        return False
    return any(map(is_private, parts)) or any(f"{dotted}.".startswith(f"{name}.") for name in INTERNAL)


PRIVATE = (
    "import torch._dynamo",
    "from torch import _C",
    "from torch._ops import OpOverload",
    "from torch.onnx._internal.torchscript_exporter import utils",
    "from transformers.exporters.utils import prepare_for_export",
    "found = isinstance(func, torch._ops.HigherOrderOperator)",
    "graph: torch._C.Graph",
    "version = tensor._version",
    "identity = tensor.untyped_storage()._cdata",
    "hooks = module._forward_hooks",
    'schema = getattr(operator, "_schema", None)',
    'setattr(torch.nn.Module, "_call_impl", own)',
    'utils = importlib.import_module("torch._library.utils")',
    'there = find_spec("transformers.exporters")',
)
HARMLESS = (
    "self._version = 1",
    "found = self._modules",
    "class Own:\n    def set(self):\n        self._kept = 1\n    def same(self, other):\n        return other._kept",
    "import torch.fx",
    "from torch.overrides import TorchFunctionMode",
    "from modelexport._version import __version__",
    "names = value._fields",
    "frame = sys._getframe(1)",
    'forward = getattr(module, "forward")',
    '"""torch._C is private."""',
    'logging.getLogger("torch._export")',
)


@pytest.mark.parametrize("source", PRIVATE)
def test_use_of_a_private_name_is_found(source: str) -> None:
    assert findings(source)


@pytest.mark.parametrize("source", HARMLESS)
def test_harmless_source_is_let_through(source: str) -> None:
    assert findings(source) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_private_names_of_libraries_are_used_only_as_parts(file: Path) -> None:
    source = file.read_text(encoding="utf-8")
    allowed = OTHER_USES.get(file.relative_to(ROOT).as_posix(), set())
    assert {finding.partition(": ")[2] for finding in findings(source)} == allowed
    assert "torch_support/private" in file.as_posix() or file.name == "transformers_private.py" or "Part(" not in source
