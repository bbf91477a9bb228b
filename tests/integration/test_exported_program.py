"""Saved exported programs: torch's own graph, the owners that hooks would have seen, and no code run of theirs."""

from __future__ import annotations

import contextlib
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
import torch
from tests.conftest import Exported, Exporter, claims
from tests.support import programs, split_archives, zoo
from tests.support.command import Outcome
from tests.support.plain import fresh_generated_code
from tests.support.value_check import judge

import modelexport
from modelexport.sources.loaders.model_reference import load_model
from modelexport.sources.loaders.pt2.program_loader import checked_program
from modelexport.sources.loaders.pt2.text_rules import MODULE_STATE
from modelexport.sources.loaders.sourced_model import SourcedModel
from modelexport.torch_support.example_inputs import normalize_inputs
from modelexport.verification.contamination_by_value import validate_owners_by_value

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]


def grouped(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in names]


def saved(name: str, folder: Path, **options: Any) -> Path:
    example = zoo.build(name)
    return programs.save_program(example.model, example.inputs, folder / f"{name}.pt2", **options)


def exported_from(path: Path) -> tuple[SourcedModel, modelexport.ExportResult]:
    fresh_generated_code()
    sourced = load_model(str(path))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = modelexport.export_model(sourced.model, sourced.example_inputs, path.with_suffix(".onnx"))
    return sourced, result


def owners(document: modelexport.HierarchyDocument) -> dict[str, tuple[str, str, tuple[str, ...]]]:
    return {node.id: (node.module, node.kind, node.contributors) for node in document.nodes}


@pytest.mark.parametrize("name", grouped("no_grad", "shared_block", "cnn", "bert"))
def test_program_gives_torchs_own_graph_with_the_owners_that_hooks_saw(
    exported: Exporter, name: str, tmp_path: Path
) -> None:
    path = saved(name, tmp_path)
    _, result = exported_from(path)
    fresh_generated_code()
    torch.onnx.export(
        torch.export.load(path), (), tmp_path / "plain.onnx", dynamo=True, verbose=False, external_data=False
    )
    stripped = modelexport.strip_hierarchy(onnx.load(result.onnx_path))
    assert stripped.SerializeToString() == onnx.load(tmp_path / "plain.onnx").SerializeToString()
    hooked = exported(name)
    assert owners(result.document) == owners(hooked.document)
    assert result.coverage == 1.0
    ours = [(m.path, m.class_name, m.qualified_class, m.parameters, m.buffers) for m in result.document.modules]
    # A container that is never called is known by its place alone.
    called = {call.path for call in hooked.document.calls}
    theirs = {m.path: (m.class_name, m.qualified_class) for m in hooked.document.modules}
    assert [entry[0] for entry in ours] == [m.path for m in hooked.document.modules]
    assert all((kind, qualified) == theirs[path] for path, kind, qualified, *_ in ours if path in called)
    assert [entry[3:] for entry in ours] == [(m.parameters, m.buffers) for m in hooked.document.modules]
    verdict = judge(
        result.onnx_path,
        claims(Exported(hooked.example, result, {})),
        hooked.example.model,
        hooked.args,
        hooked.kwargs,
        hooked.feeds,
    )
    assert verdict.contaminated == ()
    assert verdict.judged > 5


@pytest.mark.xdist_group("shared_block")
def test_program_of_strict_export_counts_calls_as_well(exported: Exporter, tmp_path: Path) -> None:
    _, result = exported_from(saved("shared_block", tmp_path, strict=True))
    assert {node.module for node in result.document.nodes} == {
        node.module for node in exported("shared_block").document.nodes
    }


@pytest.mark.xdist_group("shared_block")
def test_extracted_call_of_a_program_returns_what_the_module_returns(tmp_path: Path) -> None:
    example = zoo.build("shared_block")
    sourced, result = exported_from(saved("shared_block", tmp_path))
    calls = {call.id: call for call in result.document.calls}
    assert [[t.name for t in side] for side in (calls["blk@1"].inputs, calls["blk@1"].outputs)] == [
        ["input"],
        ["output"],
    ]
    part = modelexport.extract_module(result.onnx_path, "blk@1")
    x = torch.randn(*example.inputs.shape)
    session = onnxruntime.InferenceSession(ir.to_proto(part).SerializeToString(), providers=["CPUExecutionProvider"])
    (made,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    np.testing.assert_allclose(made, example.model.blk(x).detach().numpy(), atol=1e-5)
    whole = modelexport.verify_modules(result.onnx_path, sourced.model, sourced.example_inputs)
    assert whole.passed
    assert {call["verdict"] for call in whole.as_dict()["calls"] if call["call"] == ""} == {"within"}
    each = modelexport.verify_modules(result.onnx_path, example.model, sourced.example_inputs)
    assert {call["verdict"] for call in each.as_dict()["calls"]} == {"within"}


@pytest.mark.xdist_group("cond")
def test_owner_without_evidence_is_inferred_and_never_exact(exported: Exporter, tmp_path: Path) -> None:
    _, result = exported_from(saved("cond", tmp_path))
    truth = {node.id: node.module for node in exported("cond").document.nodes}
    wrong = {node.id: node.kind for node in result.document.nodes if node.module != truth[node.id]}
    assert set(wrong.values()) == {"inferred"}
    assert all("_branch/" in node for node in wrong)


@pytest.mark.xdist_group("aliased")
def test_module_with_several_names_is_several_modules_with_tied_weights(tmp_path: Path) -> None:
    _, result = exported_from(saved("aliased", tmp_path))
    modules = {module.path: module for module in result.document.modules}
    assert modules["second.lin"].tied_parameters == {"weight": "first.lin.weight", "bias": "first.lin.bias"}
    assert {"first.lin", "second.lin", "list.0.lin"} <= {node.module for node in result.document.nodes}


def net(folder: Path) -> Path:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    batch = {"dynamic_shapes": ({0: torch.export.Dim.AUTO},)}
    return programs.save_program(model, torch.randn(2, 4), folder / "net.pt2", **batch)


def test_command_exports_a_program_with_the_inputs_it_was_made_with(
    command: Callable[..., Outcome], tmp_path: Path
) -> None:
    path = net(tmp_path)
    done = command("export", path, tmp_path / "net.onnx")
    assert done.code == 0, done.stderr
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert graph.input[0].type.tensor_type.shape.dim[0].dim_param
    for strategy in ("htp", "usage_based"):
        refused = command("export", path, tmp_path / "other.onnx", "--strategy", strategy)
        assert refused.code == 2
        assert "Use strategy 'fx'" in refused.stderr


def test_values_of_modules_are_not_asked_of_a_program_which_runs_as_one_piece(tmp_path: Path) -> None:
    sourced, result = exported_from(net(tmp_path))
    with pytest.raises(modelexport.InputError, match="calls none of its modules"):
        validate_owners_by_value(result.onnx_path, sourced.model, sourced.example_inputs)
    with pytest.raises(modelexport.StrategyIncompatibleError, match="Use strategy 'fx'"):
        modelexport.tag_file(result.onnx_path, sourced.model, sourced.example_inputs, tmp_path / "tagged.onnx")


def test_dynamic_shapes_cannot_be_given_anew(tmp_path: Path) -> None:
    sourced = load_model(str(net(tmp_path)))
    with pytest.raises(modelexport.StrategyIncompatibleError, match="cannot change it"):
        modelexport.export_model(
            sourced.model, sourced.example_inputs, tmp_path / "m.onnx", strategy="fx", dynamic_shapes=({0: "b"},)
        )


@pytest.mark.parametrize("kind", list(programs.evil_members(Path())))
def test_file_that_would_run_code_is_refused_unread(kind: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = programs.rewrite(net(tmp_path), programs.evil_members(marker)[kind])
    with pytest.raises(modelexport.ModelSourceError, match=r"was not loaded: .* could run code"):
        load_model(str(path))
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["inputs", "weight", "constant", "size", "size_without_quotes"])
def test_torch_itself_would_have_run_the_code(kind: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = programs.rewrite(net(tmp_path), programs.evil_members(marker)[kind])
    with contextlib.suppress(Exception):  # what it raises afterwards does not matter
        torch.export.load(path)
    assert marker.exists()


def branching(folder: Path) -> Path:
    torch.manual_seed(0)
    return programs.save_program(programs.Branching(), programs.branching_inputs(), folder / "branching.pt2")


@pytest.mark.parametrize("kind", list(programs.evil_names(Path())))
def test_name_that_would_become_code_is_refused(kind: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = programs.rewrite(branching(tmp_path), programs.evil_names(marker)[kind])
    with pytest.raises(modelexport.ModelSourceError, match=r"was not loaded: .* could run code"):
        load_model(str(path))
    assert not marker.exists()


@pytest.mark.parametrize("kind", ["keyword_of_subgraph_call", "keyword_of_size_function", "placeholder", "example_key"])
def test_torch_itself_would_have_compiled_the_name(kind: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = programs.rewrite(branching(tmp_path), programs.evil_names(marker)[kind])
    # What it raises afterwards does not matter, and torch leaves gradients off then.
    with torch.enable_grad(), contextlib.suppress(Exception):
        torch.export.load(path).module()(**programs.branching_inputs())
    assert marker.exists()


@pytest.mark.parametrize("construction", list(split_archives.CONSTRUCTIONS))
def test_archive_that_torch_reads_differently_loads_only_what_was_checked(
    command: Callable[..., Outcome], construction: str, tmp_path: Path
) -> None:
    marker = tmp_path / "marker"
    with zipfile.ZipFile(net(tmp_path)) as archive:
        seen = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    hidden = {**seen, "data/sample_inputs/model.pt": programs.pickled(marker)}
    path = tmp_path / "split.pt2"
    path.write_bytes(split_archives.CONSTRUCTIONS[construction](seen, hidden))
    assert command("inspect", path).code == 0
    assert command("export", path, tmp_path / "split.onnx").code == 0
    assert not marker.exists()
    with contextlib.suppress(Exception):
        torch.export.load(path)
    assert marker.exists(), "torch no longer reads the hidden directory: the archive proves nothing"


def test_file_is_read_once_so_that_it_cannot_be_exchanged_after_the_check(tmp_path: Path) -> None:
    path = net(tmp_path)
    with checked_program(path) as (archive, _):
        path.write_bytes(b"another file")
        assert torch.export.load(archive).graph_module is not None


def test_program_with_assertions_and_subgraphs_loads(tmp_path: Path) -> None:
    class Counting(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            count = (x > 0).sum().item()
            torch._check(count >= 0)
            return torch.zeros(count + 1)

    for model, inputs in ((Counting(), torch.ones(3)), (programs.Branching(), programs.branching_inputs())):
        path = programs.save_program(model, inputs, tmp_path / f"{type(model).__name__}.pt2")
        sourced = load_model(str(path))
        args, kwargs = normalize_inputs(sourced.example_inputs, None)
        torch.testing.assert_close(sourced.model(*args, **kwargs), model(*args, **kwargs))


def test_attributes_of_a_graph_module_are_those_that_are_refused_as_names(tmp_path: Path) -> None:
    module = torch.export.load(net(tmp_path)).module()
    own = {name for name in vars(module) if not hasattr(torch.fx.GraphModule, name)}
    assert own <= MODULE_STATE


def test_file_that_was_only_rewritten_loads(tmp_path: Path) -> None:
    path = programs.rewrite(net(tmp_path), lambda members: None)
    assert load_model(str(path)).example_inputs is not None


def test_file_that_is_not_a_program_is_refused_with_what_it_is(tmp_path: Path) -> None:
    path = net(tmp_path)
    content = path.read_bytes()
    cases = {"short.pt2": content[: len(content) // 2], "empty.pt2": b"", "text.pt2": b"no program" * 10}
    for name, bad in cases.items():
        (tmp_path / name).write_bytes(bad)
        with pytest.raises(modelexport.ModelSourceError, match="is not an exported program that can be read"):
            load_model(str(tmp_path / name))
    with zipfile.ZipFile(tmp_path / "other.pt2", "w") as archive:
        archive.writestr("folder/file", "text")
    with pytest.raises(modelexport.ModelSourceError, match=r"not one of torch\.export\.save"):
        load_model(str(tmp_path / "other.pt2"))
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "script.pt2")
    with pytest.raises(modelexport.ModelSourceError, match="TorchScript"):
        load_model(str(tmp_path / "script.pt2"))
    weights = content.replace(b'"use_pickle"', b'"use-pickle"')
    (tmp_path / "keys.pt2").write_bytes(weights)
    with pytest.raises(modelexport.ModelSourceError):
        load_model(str(tmp_path / "keys.pt2"))
