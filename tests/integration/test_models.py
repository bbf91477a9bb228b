"""What must hold for every model: the graph is torch's own, every node has its true owner, boundaries are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from tests.conftest import Exporter, claims
from tests.support import zoo
from tests.support.eager_calls import record_calls
from tests.support.plain import export_plainly, export_raw_and_optimized
from tests.support.value_check import judge, run_onnx

import modelexport
from modelexport.hierarchy.calls import CallId

PlainModels = Callable[..., dict[bool, onnx.ModelProto]]
# `make must` is to answer within a minute; the whole suite runs the rest.
_IN_A_MINUTE = ("cnn", "shared_block", "no_grad", "cond")


def _variants() -> list[object]:
    found = []
    for name in zoo.names():
        for dynamic in (False, True):
            if dynamic and zoo.build(name).dynamic_shapes is None:
                continue
            for optimize in (True, False):
                label = f"{name}-{'dynamic' if dynamic else 'static'}-{'optimized' if optimize else 'raw'}"
                marks = [pytest.mark.xdist_group(name)]
                if name in _IN_A_MINUTE and not dynamic:
                    marks.append(pytest.mark.must)
                found.append(pytest.param(name, dynamic, optimize, id=label, marks=marks))
    return found


pytestmark = pytest.mark.integration
every_variant = pytest.mark.parametrize(("name", "dynamic", "optimize"), _variants())


@pytest.fixture(scope="session")
def plain_models(exported: Exporter, tmp_path_factory: pytest.TempPathFactory) -> PlainModels:
    """What plain torch writes, by `optimize`: it captures the model once for both."""

    @cache
    def export(name: str, dynamic: bool) -> dict[bool, onnx.ModelProto]:
        ours = exported(name, dynamic=dynamic)
        options = {option: value for option, value in ours.options.items() if option != "optimize"}
        folder = tmp_path_factory.mktemp(f"plain_{name}")
        return export_raw_and_optimized(ours.example.model, ours.args, ours.kwargs, folder, **options)

    return export


@pytest.mark.xdist_group("cnn")
@pytest.mark.parametrize("optimize", [True, False])
def test_one_capture_of_plain_torch_gives_the_files_of_two(
    exported: Exporter, plain_models: PlainModels, tmp_path: Path, optimize: bool
) -> None:
    ours = exported("cnn", optimize=optimize)
    plain = export_plainly(ours.example.model, ours.args, ours.kwargs, tmp_path / "plain.onnx", optimize=optimize)
    assert plain_models("cnn", dynamic=False)[optimize] == plain


@every_variant
def test_file_equals_plain_export_when_our_metadata_is_stripped(
    exported: Exporter, plain_models: PlainModels, name: str, dynamic: bool, optimize: bool
) -> None:
    ours = exported(name, dynamic=dynamic, optimize=optimize)
    plain = plain_models(name, dynamic=dynamic)[optimize]
    tagged = onnx.load(ours.path)
    assert tagged != plain
    stripped = modelexport.strip_hierarchy(tagged)
    assert stripped.SerializeToString(deterministic=True) == plain.SerializeToString(deterministic=True)


@every_variant
def test_graph_before_optimization_is_recognized(exported: Exporter, name: str, dynamic: bool, optimize: bool) -> None:
    notes = exported(name, dynamic=dynamic, optimize=optimize).result.notes
    assert not [note for note in notes if "was not seen" in note]


@every_variant
def test_checker_accepts_the_file(exported: Exporter, name: str, dynamic: bool, optimize: bool) -> None:
    onnx.checker.check_model(exported(name, dynamic=dynamic, optimize=optimize).path, full_check=True)


@every_variant
def test_every_node_has_an_owner_that_was_called(exported: Exporter, name: str, dynamic: bool, optimize: bool) -> None:
    document = exported(name, dynamic=dynamic, optimize=optimize).document
    calls = {call.id for call in document.calls}
    paths = {module.path for module in document.modules}
    assert document.coverage == 1.0
    for node in document.nodes:
        assert {node.module, *node.contributors} <= calls
        assert CallId.parse(node.module).path in paths
        assert node.reason
        assert 0 < node.confidence <= 1
        assert (node.confidence == 1) == (node.kind == "exact")
        assert bool(node.contributors) == (node.kind in ("fused", "merged")) or node.kind == "inferred"


@every_variant
def test_no_node_is_owned_by_a_module_that_did_not_compute_it(
    exported: Exporter, name: str, dynamic: bool, optimize: bool
) -> None:
    ours = exported(name, dynamic=dynamic, optimize=optimize)
    verdict = judge(ours.path, claims(ours), ours.example.model, ours.args, ours.kwargs, ours.feeds)
    assert verdict.contaminated == ()
    assert verdict.judged >= 3


@every_variant
def test_root_owns_only_what_it_ran_or_what_serves_several_of_its_children(
    exported: Exporter, name: str, dynamic: bool, optimize: bool
) -> None:
    ours = exported(name, dynamic=dynamic, optimize=optimize)
    document = ours.document
    graph = onnx.load(ours.path, load_external_data=False).graph
    records = {node.id: node for node in document.nodes}
    parents = {call.id: call.parent for call in document.calls}
    readers: dict[str, set[str]] = {}
    for node in graph.node:
        owner = records[next(name for name in node.output if name)].module
        for name in node.input:
            readers.setdefault(name, set()).add(owner)
    for node in document.nodes:
        if node.module == "" and node.kind == "inferred":
            served = readers[node.id]
            ways = [set(_callers(call, parents)) for call in served]
            assert set.intersection(*ways) == {""}, f"{node.id} serves {served}, which have a closer caller"


def _callers(call: str | None, parents: dict[str, str | None]) -> list[str]:
    found = []
    while call is not None:
        found.append(call)
        call = parents[call]
    return found


@every_variant
def test_boundary_tensors_are_the_inputs_and_outputs_of_the_module(
    exported: Exporter, name: str, dynamic: bool, optimize: bool
) -> None:
    ours = exported(name, dynamic=dynamic, optimize=optimize)
    eager = record_calls(ours.example.model, ours.args, ours.kwargs)
    tensors = {**run_onnx(ours.path, ours.feeds), **ours.feeds}
    checked = 0
    for call in ours.document.calls:
        if call.id not in eager:
            continue
        for boundaries, seen in ((call.inputs, eager[call.id].inputs), (call.outputs, eager[call.id].outputs)):
            # Eager PyTorch may leave out what tracing needs (a mask that masks nothing), but nothing is invented.
            assert set(seen) <= {boundary.name for boundary in boundaries}, call.id
            for boundary in boundaries:
                if boundary.tensor in tensors and boundary.name in seen:
                    found, expected = tensors[boundary.tensor].astype(np.float32), seen[boundary.name]
                    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4, err_msg=f"{call.id} {boundary}")
                    checked += 1
    assert checked >= len(eager)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in zoo.names()])
def test_hooks_saw_the_calls_that_eager_pytorch_makes(exported: Exporter, name: str) -> None:
    ours = exported(name)
    eager = record_calls(ours.example.model, ours.args, ours.kwargs)
    assert [call.id for call in ours.document.calls if call.inputs or call.id in eager] == list(eager)


@pytest.mark.xdist_group("shared_block")
def test_each_call_of_a_reused_block_has_its_own_nodes_and_tag(exported: Exporter) -> None:
    document = exported("shared_block").document
    calls = [call for call in document.calls if call.path == "blk"]
    assert [call.id for call in calls] == ["blk", "blk@1", "blk@2"]
    assert [call.tag for call in calls] == ["/SharedBlock/Block", "/SharedBlock/Block@1", "/SharedBlock/Block@2"]
    count = Counter(node.module for node in document.nodes)
    assert count["blk"] == count["blk@1"] == count["blk@2"] > 0
    assert count["blk.lin"] == count["blk.lin@1"] == count["blk.lin@2"] == 1


@pytest.mark.xdist_group("aliased")
def test_calls_through_an_alias_count_for_the_canonical_module(exported: Exporter) -> None:
    document = exported("aliased").document
    first = next(module for module in document.modules if module.path == "first")
    assert set(first.aliases) == {"second", "list.0"}
    assert [call.id for call in document.calls if call.path == "first"] == ["first", "first@1", "first@2"]
    assert {"first.lin", "first.lin@1", "first.lin@2", "list.1.lin"} <= {node.module for node in document.nodes}


@pytest.mark.xdist_group("no_grad")
def test_submodules_under_no_grad_keep_their_nodes(exported: Exporter) -> None:
    document = exported("no_grad").document
    count = Counter(node.module for node in document.nodes)
    assert count["frozen.lin"] == count["frozen.lin@1"] == count["trained.lin"] == 1
    assert count["frozen"] == count["frozen@1"] == count["trained"] == 2
    assert all(node.kind == "exact" for node in document.nodes)


@pytest.mark.xdist_group("cond")
def test_nodes_in_branches_belong_to_the_modules_called_there(exported: Exporter) -> None:
    document = exported("cond").document
    inside = {node.id: node.module for node in document.nodes if "_branch/" in node.id}
    assert sorted(inside.values()) == ["", "", "no", "no.lin", "yes", "yes.lin"]
    assert {node.kind for node in document.nodes} == {"exact"}


@pytest.mark.xdist_group("nested_outputs")
def test_boundary_names_follow_forward_arguments_and_result_fields(exported: Exporter) -> None:
    call = next(call for call in exported("nested_outputs").document.calls if call.id == "inner")
    assert [tensor.name for tensor in call.inputs] == ["pair.0", "pair.1", "scale"]
    assert [tensor.name for tensor in call.outputs] == [
        "logits",
        "states.0",
        "states.1",
        "extra.squared",
        "extra.unused",
    ]
    assert call.outputs[-1].tensor is None
    assert all(tensor.tensor for tensor in (*call.inputs, *call.outputs[:-1]))


@pytest.mark.xdist_group("cnn")
def test_owner_is_both_modules_when_conv_and_batchnorm_are_fused(exported: Exporter) -> None:
    fused = [node for node in exported("cnn").document.nodes if node.kind == "fused"]
    assert [(node.module, node.contributors) for node in fused] == [
        ("features.0.norm", ("features.0.conv",)),
        ("features.2.norm", ("features.2.conv",)),
    ]


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in ("bert", "vit")])
def test_producer_of_a_folded_weight_is_the_module_that_has_the_parameter(exported: Exporter, name: str) -> None:
    ours = exported(name)
    weights = {t.name: onnx.numpy_helper.to_array(t) for t in onnx.load(ours.path).graph.initializer}
    parameters = dict(ours.example.model.named_parameters())
    folded = [tensor for tensor in ours.document.tensors if tensor.source == "weight" and tensor.producer is not None]
    judged = 0
    for tensor in folded:
        content = weights[tensor.id]
        # By value: the exporter turned the matrix of a linear layer around.
        holders = {
            path.rpartition(".")[0]
            for path, parameter in parameters.items()
            if content.ndim == 2
            and tuple(parameter.shape) == content.T.shape
            and (content == parameter.numpy(force=True).T).all()
        }
        if holders:
            judged += 1
            assert CallId.parse(tensor.producer or "").path in holders
    assert judged >= 8


@pytest.mark.xdist_group("bert")
def test_mask_merged_across_layers_names_all_of_them(exported: Exporter) -> None:
    merged = [node for node in exported("bert").document.nodes if node.kind == "merged"]
    assert [(node.module, node.contributors) for node in merged] == [
        ("encoder.layer.0.attention.self", ("encoder.layer.1.attention.self",))
    ]


@pytest.mark.xdist_group("bert")
def test_bert_tags_read_as_people_write_them(exported: Exporter) -> None:
    tags = {node.tag for node in exported("bert").document.nodes}
    assert "/BertModel/BertEncoder/BertLayer.0/BertAttention/BertSelfAttention" in tags
    assert "/BertModel/BertEmbeddings/Embedding.word_embeddings" in tags
    assert "/BertModel/BertEncoder/BertLayer.1/BertOutput/LayerNorm" in tags


@pytest.mark.xdist_group("albert")
def test_albert_layers_show_the_call_index(exported: Exporter) -> None:
    tags = {node.tag for node in exported("albert").document.nodes}
    assert any(tag.endswith("/AlbertLayerGroup.0@2/AlbertLayer.0@2") for tag in tags)


@pytest.mark.xdist_group("failing")
def test_model_that_plain_torch_cannot_export_gets_a_clear_error(tmp_path: Path) -> None:
    example = zoo.build_unexportable()
    with pytest.raises(torch.onnx.OnnxExporterError):
        export_plainly(example.model, (), example.inputs, tmp_path / "plain.onnx")
    with pytest.raises(modelexport.StrategyIncompatibleError, match="the dynamo exporter failed with") as caught:
        modelexport.export_model(
            example.model, example.inputs, tmp_path / "ours.onnx", strategy="fx", exporter="dynamo"
        )
    assert isinstance(caught.value.__cause__, torch.onnx.OnnxExporterError)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*ours*"))
