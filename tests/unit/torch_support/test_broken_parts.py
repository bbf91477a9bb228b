"""What happens where a release removed or changed a private part: our error, or a file that says what was lost.

Each part is broken as this package sees it: torch itself goes on as before.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import enum
import functools
import importlib
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
import torch
from tests.support.programs import save_program
from tests.support.tiny_models import make_bert, save_bert
from tests.support.torchscript_gaps import Differences
from tests.support.untouched import snapshot
from torch import nn

import modelexport
from modelexport import torch_support
from modelexport.capture.by_value.eager_recording import run_eagerly
from modelexport.capture.diagnosis import failures_explained
from modelexport.capture.fx.constant_values import ConstantValues
from modelexport.capture.fx.stage_decomposition import decompose
from modelexport.capture.module_tree import read_module_tree
from modelexport.errors import ModelExportError, StrategyIncompatibleError
from modelexport.sources.loaders.pt2 import text_rules
from modelexport.sources.loaders.pt2.program_loader import load_exported_program
from modelexport.sources.loaders.sourced_model import LoadOptions
from modelexport.sources.loaders.transformers_model import load_folder
from modelexport.strategies.htp import HtpStrategy
from modelexport.strategies.registry import StrategyRegistry
from modelexport.torch_support import control_flow_depth, tensors_in
from modelexport.torch_support.private import map_leaves_with_keys
from modelexport.torch_support.private_export import name_dynamic_axes
from modelexport.torch_support.private_fx import translated_text
from modelexport.torch_support.private_part import Part
from modelexport.torch_support.transformers_private import has_exporters
from modelexport.verification.onnx_run import _prepared

pytestmark = [pytest.mark.sanity, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("broken_parts")]


def all_parts() -> dict[str, Part]:
    """Every part that a module of `torch_support` defines."""
    found: dict[str, Part] = {}
    for info in pkgutil.iter_modules(torch_support.__path__, f"{torch_support.__name__}."):
        values = vars(importlib.import_module(info.name)).values()
        members = [m.value for v in values if isinstance(v, type) and issubclass(v, enum.Enum) for m in v]
        found.update({part.path: part for part in (*values, *members) if isinstance(part, Part)})
    return found


PARTS = all_parts()


# --- uses of the parts ------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What came out of a use: the owner and kind of each node, the boundaries of calls, and the notes."""

    owners: dict[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    boundaries: Any = None
    notes: tuple[str, ...] = ()


class Child(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x)


class Tiny(nn.Module):
    """Has what is hard to attribute: fusion, a block without gradients, two calls, equal nodes and a user's hook."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 2, 1)
        self.norm = nn.BatchNorm1d(2)
        self.child, self.twin = Child(), Child()
        self.again = nn.Linear(3, 3)
        self.again.register_forward_hook(lambda module, args, result: result.neg())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x))
        with torch.no_grad():
            z = self.child(x) + self.twin(x)
        return self.again(self.again(y + z))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda v: self.left(v), lambda v: self.right(v), (x,))


def exported(model: nn.Module, inputs: Any, folder: Path, **options: Any) -> Outcome:
    result = modelexport.export_model(model, inputs, folder / "model.onnx", overwrite=True, **options)
    document = result.document
    boundaries = {call.id: (call.inputs, call.outputs) for call in document.calls}
    return Outcome({n.id: (n.module, n.kind) for n in document.nodes}, boundaries, result.notes)


@functools.cache
def tiny() -> nn.Module:
    torch.manual_seed(0)
    return Tiny().eval()


@functools.cache
def branches() -> nn.Module:
    return Branches()


@functools.cache
def differences() -> nn.Module:
    return Differences()


X = torch.linspace(-1, 1, 6).reshape(1, 2, 3)
TOKENS = {"input_ids": torch.tensor([[1, 2, 3]])}


@functools.cache
def bert() -> Any:
    return make_bert()


@functools.cache
def gpt2() -> Any:
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16)).eval()


def use_htp(folder: Path) -> Outcome:
    return exported(tiny(), X, folder, strategy="htp")


def use_htp_with_dynamic_axes(folder: Path) -> Outcome:
    return exported(tiny(), X, folder, strategy="htp", dynamic={"x": {2: "length"}})


def use_htp_with_nested_inputs(folder: Path) -> Outcome:
    class Nested(nn.Module):
        def forward(self, pair: dict[str, list[torch.Tensor]]) -> torch.Tensor:
            return pair["one"][0] + pair["one"][1]

    return exported(Nested(), {"pair": {"one": [X, X]}}, folder, strategy="htp", dynamic={"pair.one.0": {0: "n"}})


def use_htp_as_a_function_of_tensors(folder: Path) -> Outcome:
    class Result:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

    class Wrapping(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return Result(x.relu())

    return exported(Wrapping(), X, folder, strategy="htp")


def use_htp_without_an_operator(folder: Path) -> Outcome:
    return exported(differences(), torch.ones(3, 5), folder, strategy="htp")


def use_auto(folder: Path) -> Outcome:
    return exported(tiny(), X, folder, registry=StrategyRegistry((HtpStrategy(),)))


def use_by_value(folder: Path) -> Outcome:
    return exported(tiny(), X, folder, strategy="usage_based", exporter="torchscript")


def use_eager_control_flow(folder: Path) -> Outcome:
    model = branches()
    run = run_eagerly(model, read_module_tree(model), (torch.ones(1, 2),), {})
    return Outcome(boundaries=sorted(map(str, run.calls)))


def use_control_flow_depth(folder: Path) -> Outcome:
    with control_flow_depth():
        branches()(torch.ones(1, 2))
    return Outcome()


def use_diagnosis(folder: Path) -> Outcome:
    try:
        with failures_explained("fx", "dynamo", tiny()):
            raise RuntimeError("a failure")
    except StrategyIncompatibleError as error:
        if "a failure" not in str(error):
            raise
    return Outcome()


class ByBuffer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("size", torch.tensor(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_ones(self.size.item())


def use_constant_values(folder: Path) -> Outcome:
    model = ByBuffer()
    with failures_explained("fx", "dynamo", model), ConstantValues(model).known():
        program = torch.export.export(model, (X,), strict=False)
    return Outcome(boundaries=[str(node.target) for node in program.graph.nodes])


def use_program(folder: Path) -> Outcome:
    # Another test of this process may have read the operators already.
    text_rules._size_operators.cache_clear()
    path = folder / "program.pt2"
    if not path.exists():
        size = torch.export.Dim("length", max=64)
        save_program(Sizes(), (torch.ones(4, 6), [torch.ones(1)]), path, dynamic_shapes=({0: size}, [None]))
    load_exported_program(path)
    return Outcome()


class Sizes(nn.Module):
    def forward(self, x: torch.Tensor, more: list[torch.Tensor]) -> torch.Tensor:
        return x.new_ones(x.shape[0] // 2 + 1) + more[0]


def use_folder(folder: Path) -> Outcome:
    if not (folder / "bert").exists():
        save_bert(folder / "bert")
    tasks = (None, "AutoModel")
    loaded = [load_folder("bert", folder / "bert", LoadOptions(random_weights=True, task=task)) for task in tasks]
    return Outcome(boundaries=[type(found.model).__name__ for found in loaded])


def use_stages(folder: Path) -> Outcome:
    return Outcome(boundaries=[(s.name, s.path, list(s.inputs)) for s in decompose(gpt2(), TOKENS)])


def use_prepared_inputs(folder: Path) -> Outcome:
    prepared, why = _prepared(bert(), dict(TOKENS))
    return Outcome(boundaries=sorted(prepared), notes=(why,) if why else ())


def use_directly(folder: Path) -> Outcome:
    """What other uses need only for models that take long to export."""
    list(tensors_in(collections.deque([X]), ""))
    map_leaves_with_keys(lambda way, leaf: way, {"a": [1]})
    translated_text(ir.Node("", "Relu", [], metadata_props={"pkg.torch.onnx.fx_node": "%relu"}))
    graph = ir.Model(ir.Graph([], [], nodes=[]), ir_version=10)
    name_dynamic_axes(torch.onnx.ONNXProgram(graph, None), ())
    return Outcome()


def use_caches(folder: Path) -> Outcome:
    return exported(bert(), TOKENS, folder, strategy="fx", exporter="dynamo-with-caches")


def use_transformers(folder: Path) -> Outcome:
    try:
        return exported(bert(), TOKENS, folder, strategy="fx", exporter="transformers")
    except modelexport.StrategyIncompatibleError as error:
        if isinstance(error.__cause__, ImportError):
            pytest.skip(f"transformers' exporter refuses this torch: {error.__cause__}")
        raise


def use_fx(folder: Path) -> Outcome:
    return exported(tiny(), X, folder, strategy="fx")


# An export with `htp` takes a twentieth of a second, one with `fx` a second.
EXPORTS = (
    use_htp,
    use_htp_with_dynamic_axes,
    use_htp_with_nested_inputs,
    use_htp_as_a_function_of_tensors,
    use_htp_without_an_operator,
    use_auto,
)
OTHERS = (
    use_eager_control_flow,
    use_control_flow_depth,
    use_diagnosis,
    use_constant_values,
    use_program,
    use_folder,
    use_stages,
    use_prepared_inputs,
    use_directly,
)
SLOW = (use_fx, use_transformers, use_caches)


# --- breaking ---------------------------------------------------------------------------------------------------


class Break(enum.Enum):
    REMOVED = "removed"
    RAISES = "raises"
    TAKES_OTHER_ARGUMENTS = "takes other arguments"
    RETURNS_NONSENSE = "returns nonsense"


# Functions of the library, as far as can be told from a traceback.
_LIBRARY: dict[str, Any] = {}
exec(
    "def raises(*args, **kwargs):\n    raise RuntimeError('changed')\n"
    "def takes_other_arguments(*, renamed):\n    raise AssertionError('not called')\n"
    "def returns_nonsense(*args, **kwargs):\n    return object()\n",
    _LIBRARY,
)


def changed(part: Part, original: object, how: Break) -> Any:
    if how is Break.RETURNS_NONSENSE and isinstance(original, type):
        return type("Other", (), {})
    _LIBRARY["__name__"] = part.library
    return _LIBRARY[how.name.lower()]


@contextlib.contextmanager
def broken(part: Part, how: Break) -> Iterator[None]:
    """Break one part, in each of the ways in which it can be used."""
    originals = {name: vars(Part)[name] for name in ("find", "of", "optional", "item", "called_through")}

    def find(self: Part) -> Any:
        if self is not part:
            return originals["find"](self)
        if how is Break.REMOVED:
            raise self.missing()
        return changed(self, originals["find"](self), how)

    def of(self: Part, instance: object) -> Any:
        if self is not part:
            return originals["of"](self, instance)
        if how is Break.REMOVED:
            raise self.missing()
        return changed(self, None, how)

    def item(self: Part, mapping: Any) -> Any:
        if self is not part:
            return originals["item"](self, mapping)
        return None if how is Break.REMOVED else changed(self, None, how)

    def optional(self: Part, instance: object) -> Any:
        if self is not part:
            return originals["optional"](self, instance)
        return None if how is Break.REMOVED else changed(self, None, how)

    def called_through(self: Part, around: Callable[..., Any], **expected: Any) -> Any:
        if self is not part:
            return originals["called_through"](self, around, **expected)
        if how is Break.REMOVED:
            raise self.missing()
        if how is Break.RETURNS_NONSENSE:
            return never_called(self, **expected)

        def strange(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            return around(lambda *_, **__: run(*args, **kwargs), object(), renamed=object())

        if expected.get("first") is None:
            return entered_with(originals["called_through"](self, strange), originals["find"])
        return called_strangely(self, originals["called_through"](self, around, **expected), originals["find"])

    vars(part).pop("fixed", None)
    try:
        with patched(find=find, of=of, item=item, optional=optional, called_through=called_through):
            yield
    finally:
        vars(part).pop("fixed", None)


@contextlib.contextmanager
def called_strangely(part: Part, context: Any, find: Any) -> Iterator[None]:
    owner, _, name = part.path.rpartition(".")
    with entered_with(context, find):
        holder = find(Part(owner, ""))
        replacement = getattr(holder, name)
        setattr(holder, name, lambda *_, **__: replacement(object()))
        yield


@contextlib.contextmanager
def never_called(part: Part, *, required: bool = False, **_: Any) -> Iterator[None]:
    yield
    if required:
        raise part.changed("torch does not call it")


@contextlib.contextmanager
def entered_with(context: Any, find: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with patched(find=find):
            stack.enter_context(context)
        yield


@contextlib.contextmanager
def patched(**methods: Any) -> Iterator[None]:
    before = {name: vars(Part)[name] for name in methods}
    for name, method in methods.items():
        setattr(Part, name, method)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Part, name, method)


@contextlib.contextmanager
def recorded_parts() -> Iterator[dict[str, set[str]]]:
    """The parts that are used within the context, with the methods of `Part`."""
    seen: dict[str, set[str]] = {}
    methods = {name: vars(Part)[name] for name in ("find", "of", "optional", "item", "called_through")}

    def recording(name: str, original: Any) -> Any:
        def method(self: Part, *args: Any, **kwargs: Any) -> Any:
            seen.setdefault(self.path, set()).add(name)
            return original(self, *args, **kwargs)

        return method

    for part in PARTS.values():
        vars(part).pop("fixed", None)
    with patched(**{name: recording(name, method) for name, method in methods.items()}):
        yield seen


# --- the tests --------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Uses:
    """Each use without a broken part: its outcome and its parts; run once."""

    folder: Path
    outcomes: dict[str, Outcome] = dataclasses.field(default_factory=dict)
    parts: dict[str, dict[str, set[str]]] = dataclasses.field(default_factory=dict)

    def run(self, use: Callable[[Path], Outcome]) -> None:
        if use.__name__ not in self.outcomes:
            with recorded_parts() as seen:
                self.outcomes[use.__name__] = use(self.folder)
            self.parts[use.__name__] = seen

    def of(self, part: Part) -> list[Callable[[Path], Outcome]]:
        """The uses to break: one cheap export, each other cheap use, and an export with `fx` where there is none."""
        for use in (*EXPORTS, *OTHERS, use_by_value):
            self.run(use)
        found = [use for use in EXPORTS if part.path in self.parts[use.__name__]][:1]
        found += [use for use in OTHERS if part.path in self.parts[use.__name__]]
        if use_eager_control_flow in found and part.path in self.parts[use_by_value.__name__]:
            found.append(use_by_value)
        for use in () if found else SLOW:
            self.run(use)
            if part.path in self.parts[use.__name__]:
                return [use]
        return found


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> Uses:
    pytest.importorskip("transformers")
    if not has_exporters():
        pytest.skip("this release of transformers has no exporters")
    return Uses(tmp_path_factory.mktemp("broken"))


@pytest.mark.parametrize("path", PARTS)
def test_broken_part_gives_our_error_or_a_file_that_says_what_was_lost(path: str, uses: Uses) -> None:
    part = PARTS[path]
    found = uses.of(part)
    assert found, "nothing here uses this part: add a use of it"
    for use in found:
        for how in ways_to_break(uses.parts[use.__name__][path]):
            check_broken(part, how, use, uses)


def ways_to_break(methods: set[str]) -> Iterator[Break]:
    """The breaks that differ for a part that is used by these methods of `Part`."""
    yield Break.REMOVED
    yield Break.RETURNS_NONSENSE
    if not methods.isdisjoint(("find", "called_through")):
        yield Break.TAKES_OTHER_ARGUMENTS
    if "called_through" not in methods and "find" in methods:
        # Where a function raises that torch calls itself, torch does not export.
        yield Break.RAISES


def check_broken(part: Part, how: Break, use: Callable[[Path], Outcome], uses: Uses) -> None:
    originals, before = functions_of_torch(), snapshot(tiny())
    which = f"{use.__name__}, {part.path} {how.value}"
    outcome: Outcome | None = None
    with broken(part, how):
        error = ""
        try:
            outcome = use(uses.folder)
        except ModelExportError as ours:
            error = str(ours)
    # Not a fault of the model or of the exporter. What a part raises that runs the model may be the model's.
    assert not error or part.path in error or (part.runs_model and how is Break.RAISES), f"{which}: {error}"
    after = snapshot(tiny())
    assert {key for key in after if after[key] != before.get(key)} == set(), which
    assert functions_of_torch() == originals, which
    if outcome is not None:
        judge(outcome, uses.outcomes[use.__name__], which)


def functions_of_torch() -> dict[str, Any]:
    """Each part that can be looked up: no patch may stay."""
    found: dict[str, Any] = {}
    for path, part in PARTS.items():
        with contextlib.suppress(ModelExportError):
            found[path] = part.find()
    return found


def judge(outcome: Outcome, intact: Outcome, which: str) -> None:
    assert set(outcome.owners) == set(intact.owners), f"{which}: another graph"
    wrong = {
        node: (owner, intact.owners[node])
        for node, (owner, kind) in outcome.owners.items()
        if kind == "exact" and owner != intact.owners[node][0]
    }
    assert wrong == {}, f"{which}: not exact"
    if (outcome.owners, outcome.boundaries) != (intact.owners, intact.boundaries):
        assert set(outcome.notes) > set(intact.notes), f"{which}: nothing says what was lost"
