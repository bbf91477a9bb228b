"""One test for each private API of torch and transformers: the test that fails names the API that a release changed.

Each test has the name of the function of `torch_support` that wraps the API.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import nn

from modelexport.capture.fx.onnx_sources import FxSources
from modelexport.capture.fx.serial_numbers import serial_of, set_serial
from modelexport.errors import ModelExportError, UnsupportedLibraryError
from modelexport.exporting.export import export_model
from modelexport.torch_support import private, private_export, private_fx, private_jit, transformers_private
from modelexport.torch_support.private_jit import JitPass

pytestmark = [
    pytest.mark.sanity,
    # torch's own exporters call what torch says this of.
    pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated"),
]
# Functions that use no private API themselves.
HELPERS = {
    "called_through",
    "find_part",
    "fixed_part",
    "find_attribute",
    "missing_part",
    "storage_of",
    "tensors_among",
}


def test_every_private_api_has_a_test() -> None:
    functions = {
        name
        for module in (private, private_export, private_fx, private_jit, transformers_private)
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }
    canaries = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert functions - HELPERS - canaries == set()


def test_missing_part_is_named_with_the_releases_that_have_it() -> None:
    with pytest.raises(UnsupportedLibraryError, match=r"torch .* has no torch\._C\._no_such_pass.*2\.13\.0") as caught:
        private.find_part("torch._C._no_such_pass")
    assert caught.value.part == "torch._C._no_such_pass"
    with pytest.raises(UnsupportedLibraryError, match=r"torch\._no_such_package\.part"):
        private.find_part("torch._no_such_package.part")
    with pytest.raises(UnsupportedLibraryError, match=r"torch\.Tensor\._no_such_counter"):
        private.find_attribute(torch.ones(1), "_no_such_counter")
    with (
        pytest.raises(UnsupportedLibraryError, match=r"torch\._C\._no_such_pass"),
        private.called_through("torch._C", "_no_such_pass", print),
    ):
        pass


# --- private: tensors -------------------------------------------------------------------------------------------


def test_storage_id() -> None:
    tensor = torch.ones(4)
    assert private.storage_id(tensor) == private.storage_id(tensor.view(2, 2)[1:])
    assert private.storage_id(tensor) != private.storage_id(tensor.clone())
    assert private.storage_id(torch.ones(2, 2).to_sparse()) is None


def test_storage_reference() -> None:
    tensor = torch.ones(4)
    assert private.storage_reference(tensor).cdata == private.storage_reference(tensor[1:]).cdata
    assert private.storage_reference(torch.ones(2, 2).to_sparse()) is None


def test_version_of() -> None:
    tensor = torch.ones(4)
    before = private.version_of(tensor)
    tensor[1:].add_(1)
    assert private.version_of(tensor) > before
    with torch.inference_mode():
        uncounted = torch.ones(1)
    with pytest.raises(RuntimeError):
        private.version_of(uncounted)


def test_base_of() -> None:
    tensor = torch.ones(4)
    assert private.base_of(tensor[1:]) is tensor
    assert private.base_of(tensor) is None


def test_is_functorch_wrapped() -> None:
    seen: list[bool] = []

    def look(row: torch.Tensor) -> torch.Tensor:
        seen.append(private.is_functorch_wrapped(row))
        return row * 2

    torch.vmap(look)(torch.ones(2, 3))
    assert seen == [True]
    assert not private.is_functorch_wrapped(torch.ones(1))


# --- private: modules and operators -----------------------------------------------------------------------------


def test_has_forward_hooks() -> None:
    module = nn.ReLU()
    assert not private.has_forward_hooks(module)
    with torch.no_grad():
        handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert private.has_forward_hooks(module)
    handle.remove()
    module.register_forward_pre_hook(lambda *_: None)
    assert private.has_forward_hooks(module)


def test_children_of() -> None:
    model = nn.Module()
    model.one = model.two = nn.ReLU()
    model.none = None
    model.add_module("nothing", None)
    assert list(private.children_of(model)) == ["one", "two"]


def test_is_higher_order_operator() -> None:
    assert private.is_higher_order_operator(torch.ops.higher_order.cond)
    assert not private.is_higher_order_operator(torch.ops.aten.add.Tensor)


def test_is_operator_overload() -> None:
    assert private.is_operator_overload(torch.ops.aten.add.Tensor)
    assert not private.is_operator_overload(torch.add)


def test_schema_of() -> None:
    schema = private.schema_of(torch.ops.aten.add_.Tensor)
    assert schema.is_mutable
    assert [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write] == ["self"]
    assert private.schema_of(torch.add) is None


def test_written_arguments() -> None:
    x, y = torch.ones(2), torch.ones(2)
    (written,) = private.written_arguments(torch.ops.aten.add_.Tensor, (x, y), {})
    assert written is x
    (out,) = private.written_arguments(torch.ops.aten.add.out, (x, x), {"out": y})
    assert out is y
    assert private.written_arguments(torch.ops.aten.add.Tensor, (x, y), {}) == []


def test_is_control_flow() -> None:
    from torch._higher_order_ops import associative_scan, scan, while_loop

    operators = (torch.cond, scan, while_loop, associative_scan, torch.ops.higher_order.cond)
    assert all(private.is_control_flow(operator) for operator in operators)
    assert not any(private.is_control_flow(other) for other in (map, torch.relu, torch.ops.aten.relu, torch.nn.ReLU))


def test_dispatch_mode() -> None:
    seen: list[Any] = []

    def handle(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        seen.append(func)
        return func(*args, **kwargs)

    mode = private.dispatch_mode(handle)
    with mode, torch.compiler.set_stance("force_eager"):
        torch.ones(2) + 1
        torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(1),))
        with mode:
            pass
    assert torch.ops.aten.add.Tensor in seen
    assert any(map(private.is_higher_order_operator, seen))


def test_higher_order_calls_through() -> None:
    called: list[str] = []

    def around(original: Any, operator: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(str(operator))
        return original(operator, *args, **kwargs)

    def branch() -> torch.Tensor:
        return torch.cond(torch.tensor(True), lambda x: x + 1, lambda x: x - 1, (torch.ones(1),))

    with torch.compiler.set_stance("force_eager"), private.higher_order_calls_through(around):
        assert branch().item() == 2
    assert "cond" in called
    called.clear()
    with torch.compiler.set_stance("force_eager"):
        branch()
    assert called == []


# --- private: nested values -------------------------------------------------------------------------------------

NESTED = {"a": [torch.ones(1), 2], "b": (torch.zeros(2),)}


def test_leaves_of() -> None:
    assert [type(leaf) for leaf in private.leaves_of(NESTED)] == [torch.Tensor, int, torch.Tensor]
    assert len(private.tensors_among(NESTED)) == 2


def test_flatten() -> None:
    leaves, structure = private.flatten((1, {"x": 2}))
    assert leaves == [1, 2]
    assert private.unflatten([3, 4], structure) == (3, {"x": 4})


test_unflatten = test_flatten


def test_map_leaves() -> None:
    assert private.map_leaves(lambda leaf: leaf + 1, {"a": [1], "b": (2,)}) == {"a": [2], "b": (3,)}


def test_leaves_with_keys() -> None:
    assert [way for way, _ in private.leaves_with_keys(NESTED)] == [("a", 0), ("a", 1), ("b", 0)]


def test_map_leaves_with_keys() -> None:
    assert private.map_leaves_with_keys(lambda way, leaf: (*way, leaf), {"a": [1]}) == {"a": [("a", 0, 1)]}


def test_registered_children() -> None:
    assert private.registered_children({"a": 1, "b": 2}) == [1, 2]
    assert private.registered_children(object()) is None


# --- private_fx -------------------------------------------------------------------------------------------------


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


def test_require_tracing_parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    private_fx.require_tracing_parts()
    monkeypatch.delattr("torch.fx.experimental.proxy_tensor.get_proxy_slot")
    private.fixed_part.cache_clear()
    # Not a file with weaker evidence: an error that names the part.
    with pytest.raises(ModelExportError, match=r"has no torch\.fx\.experimental\.proxy_tensor\.get_proxy_slot"):
        export_model(nn.Linear(2, 2), torch.ones(1, 2), tmp_path / "model.onnx", strategy="fx")


def test_custom_metadata_goes_to_what_a_node_is_decomposed_into() -> None:
    _, program = traced()
    decomposed = program.run_decompositions()
    assert {serial_of(node) for node in decomposed.graph.nodes if node.op == "call_function"} == {7}


def test_module_stack_of_a_traced_node_is_keyed_by_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.child(self.child(x))

    program = torch.export.export(Twice(), (torch.ones(1, 2),), strict=False)
    stacks = [
        list(node.meta["nn_module_stack"].items())[-1] for node in program.graph.nodes if node.op == "call_function"
    ]
    assert [(key.partition("@")[2], name) for key, (name, _) in stacks] == [("", "child"), ("1", "child")]


def test_before_optimization() -> None:
    seen: list[Any] = []
    with private_fx.before_optimization(lambda graph: seen.append(len(list(graph.graph)))):
        program = torch.onnx.export(nn.Linear(2, 2).eval(), (torch.ones(1, 2),), None, dynamo=True, verbose=False)
    assert len(seen) == 1
    # The exporter keeps on each ONNX node the FX node that it was translated from.
    assert program is not None
    assert program.exported_program is not None
    sources = FxSources(program.exported_program)
    assert [getattr(sources.find(node), "op", None) for node in program.model.graph] == ["call_function"]
    assert all("pkg.torch.onnx.fx_node" in node.metadata_props for node in program.model.graph)


# --- private_jit ------------------------------------------------------------------------------------------------


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


# --- transformers_private ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    if not transformers_private.has_exporters():
        pytest.skip("this release of transformers has no exporters")
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=16, n_positions=16)
    return transformers.GPT2LMHeadModel(config).eval()


TOKENS = {"input_ids": torch.tensor([[1, 2, 3]]), "attention_mask": torch.ones(1, 3, dtype=torch.long)}


def test_has_exporters(gpt2: Any) -> None:
    assert transformers_private.has_exporters()


def test_export_to_onnx(gpt2: Any) -> None:
    prepared: list[Any] = []

    def around(original: Any, model: Any, inputs: Any) -> None:
        prepared.append(set(inputs))
        original(model, inputs)

    with transformers_private.input_preparation_through(around):
        try:
            program = transformers_private.export_to_onnx(gpt2, dict(TOKENS), {"optimize": False})
        except ImportError as error:
            pytest.skip(f"transformers' exporter refuses this torch: {error}")
    assert isinstance(program, torch.onnx.ONNXProgram)
    assert program.exported_program is not None
    assert prepared
    assert "input_ids" in prepared[0]


test_input_preparation_through = test_export_to_onnx


def test_graph_names_through(gpt2: Any) -> None:
    def rename(name: str, is_output: bool) -> str:
        return f"{name}_{'out' if is_output else 'in'}"

    with transformers_private.graph_names_through(rename), contextlib.redirect_stdout(io.StringIO()):
        program = transformers_private.export_to_onnx(gpt2, dict(TOKENS), {"optimize": False})
    graph = program.model.graph
    assert graph.inputs[0].name == "input_ids_in"
    assert graph.outputs[0].name == "logits_out"


def test_prepared_inputs(gpt2: Any) -> None:
    assert "input_ids" in transformers_private.prepared_inputs(gpt2, dict(TOKENS))


def test_register_caches(gpt2: Any) -> None:
    transformers_private.register_caches(gpt2)
    cache = gpt2(**TOKENS, use_cache=True).past_key_values
    assert len(private.tensors_among(cache)) == 2


def test_decompose_for_generation(gpt2: Any) -> None:
    parts = transformers_private.decompose_for_generation(gpt2, dict(TOKENS))
    assert len(parts) == 2
    assert all(isinstance(module, nn.Module) and "input_ids" in given for module, given in parts.values())


def test_holds_tensors(gpt2: Any) -> None:
    assert transformers_private.holds_tensors({"a": [torch.ones(1)]})
    assert not transformers_private.holds_tensors({"a": [1]})


def test_implementations_of(gpt2: Any) -> None:
    gpt2.config._attn_implementation = "eager"
    assert "eager" in list(transformers_private.implementations_of(gpt2.config))


def test_model_from_config(gpt2: Any) -> None:
    made = transformers_private.model_from_config(type(gpt2), gpt2.config, {"attn_implementation": "eager"})
    assert type(made) is type(gpt2)


def test_models_by_config(gpt2: Any) -> None:
    import transformers

    assert type(gpt2.config) in transformers_private.models_by_config(transformers.AutoModelForCausalLM)
    assert transformers_private.models_by_config(type(gpt2)) is None


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


def test_fake_constants_refused() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.lin.weight.data.add_(1)
            found: torch.Tensor = self.lin(x)
            return found

    model = Writing()
    with (
        pytest.raises(RuntimeError, match="constant of the exported program is a fake tensor"),
        private_export.fake_constants_refused(model),
    ):
        torch.export.export(model, (torch.ones(1, 2),), strict=True)
    with private_export.fake_constants_refused(nn.Linear(2, 2)):
        torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),), strict=True)


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


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_is_tracer_warning() -> None:
    with pytest.warns() as caught:
        torch.jit.trace(_DependsOnValues("branch"), (torch.ones(3),))
    assert any(private_jit.is_tracer_warning(warning.category) for warning in caught)
    assert not private_jit.is_tracer_warning(UserWarning)
