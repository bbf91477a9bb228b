"""One test for each private API of `torch.export`, FX tracing and the dynamo exporter.

The test that fails names the API that a release changed: it has the name of the function of `torch_support` around it.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.support.meddlers import WritesThroughData
from torch import nn

from modelexport.errors import UnusableOptionError
from modelexport.torch_support import private_export, private_fx
from modelexport.torch_support.private_fx import serial_of, set_serial

pytestmark = [
    pytest.mark.sanity,
    # torch's own exporters call what torch says this of.
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated"),
]


class Watched(nn.Module):
    """Looks at the tracer from inside a trace; what it sees is no attribute, because torch puts those back."""

    def __init__(self, seen: list[Any]) -> None:
        super().__init__()
        self.child = nn.Linear(2, 2)
        self.see = seen.append

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tracer = private_fx.active_tracer()
        self.see((tracer, private_fx.innermost_scope(tracer)))
        result = self.child(x) + 1
        self.see(private_fx.node_of(result, tracer) if tracer is not None else None)
        if tracer is not None:
            for node in tracer.graph.nodes:
                set_serial(node, 7)
        return result


def traced() -> tuple[list[Any], torch.export.ExportedProgram]:
    seen: list[Any] = []
    return seen, torch.export.export(Watched(seen).eval(), (torch.ones(1, 2),), strict=False)


def test_active_tracer() -> None:
    seen, _ = traced()
    assert isinstance(seen[0][0].graph, torch.fx.Graph)
    assert private_fx.active_tracer() is None


def test_tracer_of() -> None:
    tracers: list[Any] = []

    def see(original: Any, mode: Any, *args: Any) -> Any:
        tracers.append(private_fx.tracer_of(mode))
        return original(mode, *args)

    with private_fx.tracing_through(see):
        seen, _ = traced()
    assert seen[0][0] in tracers


def test_tracing_through() -> None:
    operators: list[Any] = []

    def see(original: Any, mode: Any, func: Any, pre_dispatch: bool, args: Any, kwargs: Any) -> Any:
        operators.append((func, [type(arg) for arg in args], kwargs))
        return original(mode, func, pre_dispatch, args, kwargs)

    with private_fx.tracing_through(see):
        traced()
    assert any(func is torch.ops.aten.add.Tensor and kinds[1] is int for func, kinds, _ in operators)


def test_not_traced() -> None:
    found: list[Any] = []

    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with private_fx.not_traced():
                found.append(int(torch.ones(3).sum()))
            return x + 1

    program = torch.export.export(Looking(), (torch.ones(2),), strict=False)
    assert found[0] == 3
    assert torch.ops.aten.ones.default not in {node.target for node in program.graph.nodes}


def test_constant_operator() -> None:
    class Adding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.tensor([1.0, 2.0])

    program = torch.export.export(Adding(), (torch.ones(2),), strict=False)
    assert private_fx.constant_operator() in {node.target for node in program.graph.nodes}


def test_fix_size() -> None:
    class Chosen(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x.nonzero()
            private_fx.fix_size(rows.shape[0], 2)
            return rows + 1 if rows.shape[0] > 1 else rows

    program = torch.export.export(Chosen(), (torch.ones(2),), strict=False)
    assert torch.ops.aten.add.Tensor in {node.target for node in program.graph.nodes}


def test_node_of() -> None:
    seen, _ = traced()
    assert isinstance(seen[1], torch.fx.Node)
    assert seen[1].target is torch.ops.aten.add.Tensor


def test_innermost_scope() -> None:
    seen: list[Any] = []
    torch.export.export(nn.Sequential(Watched(seen)), (torch.ones(1, 2),), strict=False)
    key, name = seen[0][1]
    assert (key.endswith(name), name.rpartition(".")[2]) == (True, "0")
    assert private_fx.innermost_scope(None) == ("", None)


def test_serial_of() -> None:
    _, program = traced()
    decomposed = program.run_decompositions()
    assert {serial_of(node) for node in decomposed.graph.nodes if node.op == "call_function"} == {7}


test_set_serial = test_serial_of


def test_serials_removed() -> None:
    graph = torch.fx.symbolic_trace(nn.ReLU()).graph
    before = [dict(node.meta) for node in graph.nodes]
    with private_fx.serials_removed(graph.nodes):
        for node in graph.nodes:
            set_serial(node, 1)
    assert [dict(node.meta) for node in graph.nodes] == before


def test_module_stack_of() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.child(self.child(x))

    program = torch.export.export(Twice(), (torch.ones(1, 2),), strict=False)
    stacks = [private_fx.module_stack_of(node)[-1] for node in program.graph.nodes if node.op == "call_function"]
    assert [(key.partition("@")[2], name, cls) for key, name, cls in stacks] == [
        ("", "child", "torch.nn.modules.linear.Linear"),
        ("1", "child", "torch.nn.modules.linear.Linear"),
    ]


def test_generated_line() -> None:
    class Block(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                y = x.relu()
            return x + y

    program = torch.export.export(Block(), (torch.ones(2, requires_grad=True),), strict=False)
    lines = {
        node.target: private_fx.generated_line(node)
        for node in program.run_decompositions().graph.nodes
        if node.op == "call_function"
    }
    file, variable = lines[torch.ops.aten.relu.default]
    assert (file.startswith("<eval_with_key>"), variable) == (True, "relu")


def test_translations_seen() -> None:
    seen: list[Any] = []
    with private_fx.translations_seen(lambda program, whole: seen.append((len(program.model.graph), whole))):
        program = torch.onnx.export(nn.Linear(2, 2).eval(), (torch.ones(1, 2),), None, dynamo=True, verbose=False)
    assert seen == [(1, True)]
    # The exporter keeps on each ONNX node the FX node that it was translated from, and its text.
    assert program is not None
    (gemm,) = program.model.graph
    source = private_fx.translated_node(gemm)
    assert source is not None
    assert source.op == "call_function"
    assert private_fx.translated_text(gemm) == source.format_node()


test_translated_node = test_translated_text = test_translations_seen


class _DependsOnValues(nn.Module):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.what == "branch":
            return x if x.sum() > 0 else -x
        return x.new_zeros(int(x.sum().item()))


# torch 2.9 makes an int of a symbolic float by a method that Python deprecates.
@pytest.mark.filterwarnings("ignore:The delegation of int\\(\\) to __trunc__:DeprecationWarning")
@pytest.mark.parametrize("what", ["branch", "size"])
def test_data_dependence_errors(what: str) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011  which one it is, is what is looked at
        torch.export.export(_DependsOnValues(what), (torch.ones(3),), strict=False)
    chain: BaseException | None = caught.value
    found = False
    while chain is not None and not found:
        found = isinstance(chain, private_export.data_dependence_errors())
        chain = chain.__cause__ or chain.__context__
    assert found


def test_is_fake() -> None:
    seen: list[bool] = []

    class Look(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append(private_export.is_fake(x))
            return x + 1

    torch.export.export(Look(), (torch.ones(3),), strict=False)
    assert seen == [True]
    assert not private_export.is_fake(torch.ones(3))


def test_export_through() -> None:
    modes: list[bool] = []

    def around(original: Any, *args: Any, strict: bool = False, **kwargs: Any) -> Any:
        modes.append(strict)
        return original(*args, strict=strict, **kwargs)

    with private_export.export_through(around):
        torch.onnx.export(nn.ReLU().eval(), (torch.ones(1),), None, dynamo=True, verbose=False)
    assert modes == [False]


def test_fake_constants_refused() -> None:
    model = nn.ReLU()
    with private_export.fake_constants_refused(model):
        assert torch.export.export(model, (torch.ones(1),)).constants == {}
    writing = WritesThroughData()
    with (
        pytest.raises(UnusableOptionError, match="constant of the exported program is a fake tensor"),
        private_export.fake_constants_refused(writing),
    ):
        torch.export.export(writing, (torch.ones(1, 2),), strict=True)


def test_name_dynamic_axes() -> None:
    size = torch.export.Dim.DYNAMIC
    with warnings.catch_warnings():
        # torch advises to name the inputs.
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            nn.ReLU(), (torch.ones(2, 3),), dynamo=True, dynamic_shapes=({0: size},), verbose=False
        )
    assert program is not None
    private_export.name_dynamic_axes(program, ({0: "rows"},))
    assert [str(size) for size in program.model.graph.outputs[0].shape] == ["rows", "3"]


def test_program_schema() -> None:
    schema = private_export.program_schema()
    assert {"ExportedProgram", "Graph", "Node", "Argument", "CustomObjArgument"} <= set(vars(schema))


def test_is_schema_union() -> None:
    schema = private_export.program_schema()
    assert private_export.is_schema_union(schema.Argument)
    assert not private_export.is_schema_union(schema.Node)


def test_size_operators() -> None:
    import operator

    assert {operator.add, operator.mul} <= set(private_export.size_operators())


def test_size_functions() -> None:
    assert private_export.size_functions().FloorDiv
