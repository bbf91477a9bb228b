"""One test for each private API of TorchScript tracing and its exporter.

The test that fails names the API that a release changed: it has the name of the function of `torch_support` around it.
"""

from __future__ import annotations

import contextlib
import io
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from modelexport.torch_support import private_jit
from modelexport.torch_support.private_jit import JitPass

pytestmark = [
    pytest.mark.sanity,
    # torch's own exporters call what torch says this of.
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated"),
]


def export_with_torchscript() -> bytes:
    file = io.BytesIO()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU()).eval()
    torch.onnx.export(model, (torch.ones(1, 2),), file, dynamo=False)
    return file.getvalue()


@pytest.mark.parametrize("name", JitPass)
def test_pass_through(name: JitPass) -> None:
    seen: list[Any] = []

    def around(original: Any, graph: Any, *rest: Any) -> Any:
        seen.append(graph)
        return original(graph, *rest)

    with private_jit.pass_through(name, around):
        export_with_torchscript()
    assert private_jit.is_graph(seen[0])


def test_pass_changed() -> None:
    def nodes(graph: Any) -> list[tuple[str, int]]:
        return [(node.kind(), node.outputsSize()) for node in graph.nodes()]

    def renumber(original: Any, graph: Any, *rest: Any) -> Any:
        before = nodes(graph)
        result = original(graph, *rest)
        # The error is for a release that does not keep every value in its order.
        assert nodes(result) == before
        return result

    with private_jit.pass_through(JitPass.CANONICALIZE, renumber):
        export_with_torchscript()
    error = private_jit.pass_changed(JitPass.CANONICALIZE, "it drops values")
    assert (error.part, error.change) == ("torch._C._jit_pass_canonicalize", "it drops values")


def test_translation_seen() -> None:
    tables: list[dict[Any, Any]] = []
    with private_jit.translation_seen(tables.append):
        export_with_torchscript()
    assert tables
    assert tables[0]


def traced_graph() -> Any:
    return torch.jit.trace(lambda x: (x + 1) * 2, torch.ones(2)).graph


def script_graph() -> Any:
    def function(x: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            x = x + 1
        return x

    return torch.jit.script(function).graph


def test_new_graph() -> None:
    assert list(private_jit.new_graph().nodes()) == []


def test_is_graph() -> None:
    assert private_jit.is_graph(private_jit.new_graph())
    blocks = [block for node in script_graph().nodes() for block in node.blocks()]
    assert blocks
    assert not any(map(private_jit.is_graph, blocks))


def test_is_tensor() -> None:
    tensor, number = script_graph().inputs()
    assert private_jit.is_tensor(tensor)
    assert not private_jit.is_tensor(number)


def test_as_onnx() -> None:
    models: list[onnx.ModelProto | None] = []

    def around(original: Any, graph: Any, *rest: Any) -> Any:
        models.append(private_jit.as_onnx(graph, 18))
        return original(graph, *rest)

    with private_jit.pass_through(JitPass.EVAL_PEEPHOLE, around):
        export_with_torchscript()
    assert models[0] is not None
    assert [node.op_type for node in models[0].graph.node] == ["Gemm", "Relu"]
    assert [value.version for value in models[0].opset_import] == [18]
    assert not models[0].graph.initializer


def test_weights_apart() -> None:
    plain = onnx.load_model_from_string(export_with_torchscript())
    with private_jit.weights_apart() as contents:
        bare = export_with_torchscript()
    assert set(contents) == {weight.name for weight in plain.graph.initializer}
    assert len(bare) < len(plain.SerializeToString())


def test_silent_log() -> None:
    enabled = torch._C._jit_is_onnx_log_enabled()
    with private_jit.silent_log():
        torch._C._jit_set_onnx_log_enabled(not enabled)
        torch._C._jit_onnx_log("nothing to see")
    assert torch._C._jit_is_onnx_log_enabled() == enabled


def test_tracing_state() -> None:
    seen: list[Any] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        state = private_jit.tracing_state()
        with private_jit.TracingPaused(state):
            seen.append((state, private_jit.tracing_state()))
            x.neg()
        seen.append(private_jit.tracing_state() is not None)
        return x + 1

    graph = torch.jit.trace(look, torch.ones(2), check_trace=False).graph
    assert seen[0][0] is not None
    assert seen[0][1] is None
    assert seen[1]
    assert "neg" not in str(graph)
    assert private_jit.tracing_state() is None


test_set_tracing_state = test_tracing_state


def test_traced_value() -> None:
    found: list[Any] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        held = [x + 1]
        found.append(private_jit.traced_value(held, 0).node().kind())
        return held[0] * 2

    torch.jit.trace(look, torch.ones(2), check_trace=False)
    assert found == ["aten::add"]


def test_module_labels() -> None:
    class Looking(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            labels.update(private_jit.module_labels())
            return x + 1

    labels: dict[Any, str] = {}
    model = nn.Sequential(Looking())
    torch.onnx.export(model, (torch.ones(1),), io.BytesIO(), dynamo=False)
    assert labels[model[0]].endswith("::0")


def test_module_calls_through() -> None:
    seen: list[str] = []

    def through(what: str) -> Any:
        def around(original: Any, module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            seen.append(f"{what} {type(module).__name__}")
            return original(module, *args, **kwargs)

        return around

    with private_jit.module_calls_through(through("call"), through("forward")):
        torch.jit.trace(nn.ReLU(), torch.ones(1), check_trace=False)
        nn.Tanh()(torch.ones(1))
    assert seen == ["call ReLU", "forward ReLU", "call Tanh"]


def test_decompositions_of() -> None:
    x = torch.tensor([1.0, 3.0, 6.0])
    results = []
    for decompose in private_jit.decompositions_of("aten::diff"):
        with contextlib.suppress(RuntimeError, TypeError):
            results.append(decompose(x))
    assert any(torch.equal(r, torch.tensor([2.0, 3.0])) for r in results if r is not NotImplemented)


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_is_tracer_warning() -> None:
    with pytest.warns() as caught:
        torch.jit.trace(lambda x: x if x.sum() > 0 else -x, (torch.ones(3),))
    assert any(private_jit.is_tracer_warning(warning.category) for warning in caught)
    assert not private_jit.is_tracer_warning(UserWarning)
