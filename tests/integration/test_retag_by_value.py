"""Retagging files whose tensors were all renamed: known again by what they hold."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.conftest import Exported, Exporter
from tests.support import rewriting
from tests.support.hostile_graphs import endless_loop, function_chain, huge_tensor
from tests.support.renaming import rename_everything, rename_file, with_old_names

import modelexport
from modelexport.analysis.retagging.retagger import retag
from modelexport.limits import RunLimits

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("ignore")]

UNTOUCHED = "untouched"
TOOLS = (UNTOUCHED, "onnxruntime basic", "onnxruntime extended", "onnxruntime all", "float16")


def rewritten_and_renamed(ours: Exported, tool: str, folder: Path) -> tuple[Path, Path, dict[str, str]]:
    """What a tool makes of an export, the same with other names, and the old names by the new."""
    rewritten, renamed = folder / "rewritten.onnx", folder / "renamed.onnx"
    if tool == UNTOUCHED:
        onnx.save(onnx.load(ours.path), rewritten)
    else:
        rewriting.rewrite(tool, ours.path, rewritten, ours.feeds)
    return rewritten, renamed, rename_file(rewritten, renamed)


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.xdist_group(n)) for n in rewriting.MODELS])
def test_owner_of_every_node_is_a_related_module_and_unchanged_nodes_keep_theirs(
    exported: Exporter, name: str, tool: str, tmp_path: Path
) -> None:
    ours = exported(name)
    rewritten, renamed, old = rewritten_and_renamed(ours, tool, tmp_path)
    report = retag(renamed, ours.path, tmp_path / "retagged.onnx", by_value=True, overwrite=True)
    verdict = rewriting.judge(ours.path, ours.document, rewritten, with_old_names(report.document, old))
    assert (verdict.unowned, verdict.moved, verdict.unrelated) == ([], [], [])
    assert report.document.coverage == 1.0
    by_name = retag(rewritten, ours.path, tmp_path / "by-name.onnx")
    assert report.tensors_kept >= by_name.tensors_kept
    assert report.inferred <= by_name.inferred
    if tool in (UNTOUCHED, "float16"):
        assert verdict.untouched == verdict.nodes
        assert [node.module for node in report.document.nodes] == [node.module for node in ours.document.nodes]


@pytest.mark.xdist_group("bert")
def test_given_inputs_are_used_by_the_names_of_either_file(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("bert")
    renamed, out = tmp_path / "renamed.onnx", tmp_path / "out.onnx"
    old = rename_file(ours.path, renamed)
    new = {before: after for after, before in old.items()}
    owners = [node.module for node in ours.document.nodes]
    for feeds in (ours.feeds, {new[name]: array for name, array in ours.feeds.items()}):
        report = retag(renamed, ours.path, out, by_value=True, inputs=feeds, overwrite=True)
        assert [node.module for node in report.document.nodes] == owners
    short = {name: array[:, :3] for name, array in ours.feeds.items()}
    with pytest.raises(modelexport.InputError, match="takes"):
        retag(renamed, ours.path, out, by_value=True, inputs=short, overwrite=True)
    with pytest.raises(modelexport.InputError, match="nothing was given for input"):
        retag(renamed, ours.path, out, by_value=True, inputs={}, overwrite=True)
    with pytest.raises(modelexport.InputError, match="no input 'more'"):
        retag(renamed, ours.path, out, by_value=True, inputs={**ours.feeds, "more": np.ones(1)}, overwrite=True)


@pytest.mark.xdist_group("bert")
def test_axes_of_any_length_get_one(exported: Exporter, tmp_path: Path) -> None:
    ours = exported("bert", dynamic=True)
    renamed = tmp_path / "renamed.onnx"
    rename_file(ours.path, renamed)
    report = retag(renamed, ours.path, by_value=True, overwrite=True)
    assert [node.module for node in report.document.nodes] == [node.module for node in ours.document.nodes]


@pytest.mark.xdist_group("bert")
def test_names_that_were_swapped_do_not_count(exported: Exporter, tmp_path: Path) -> None:
    """A tool may give new tensors the names that others had."""
    ours = exported("bert")
    model = onnx.load(ours.path)
    old = rename_everything(model)
    made = [name for node in model.graph.node for name in node.output if name]
    others = dict(zip(made, (old[name] for name in (*made[7:], *made[:7])), strict=True))
    for node in model.graph.node:
        node.input[:] = [others.get(name, name) for name in node.input]
        node.output[:] = [others.get(name, name) for name in node.output]
    for value in model.graph.output:
        value.name = others[value.name]
    path = tmp_path / "swapped.onnx"
    onnx.save(model, path)
    report = retag(path, ours.path, by_value=True, overwrite=True)
    assert [node.module for node in report.document.nodes] == [node.module for node in ours.document.nodes]


@pytest.mark.xdist_group("bert")
@pytest.mark.parametrize("strategy", ["none", "by value"])
def test_another_model_is_refused(exported: Exporter, tmp_path: Path, strategy: str) -> None:
    """The same architecture with other weights: the structure is the same, and nothing that it computes."""
    model = onnx.load(exported("bert").path)
    for tensor in model.graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if array.dtype == np.float32 and array.size > 1:
            changed = np.random.default_rng(7).standard_normal(array.shape).astype(np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(changed, tensor.name))
    rename_everything(model)
    path = tmp_path / "other.onnx"
    onnx.save(model, path)
    before = path.read_bytes()
    with pytest.raises(modelexport.InputError, match="another model"):
        retag(path, exported("bert").path, by_value=strategy == "by value", overwrite=True)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.xdist_group("cnn")
@pytest.mark.parametrize(
    ("make", "limits", "reason"),
    [
        (functools.partial(function_chain, 5000), RunLimits(), "onnxruntime crashed (SIGSEGV"),
        (endless_loop, RunLimits(seconds=1.0), "onnxruntime timed out after 1 s"),
        (huge_tensor, RunLimits(memory_bytes=2**30), "onnxruntime ran out of memory, its limit is 1 GiB"),
    ],
    ids=["function chain", "endless loop", "huge tensor"],
)
def test_hostile_file_is_an_error_of_ours(
    exported: Exporter, tmp_path: Path, make: Callable[..., onnx.ModelProto], limits: RunLimits, reason: str
) -> None:
    ours = exported("cnn")
    shape = [size.dim_value for size in onnx.load(ours.path).graph.input[0].type.tensor_type.shape.dim]
    path = tmp_path / "hostile.onnx"
    onnx.save(make(shape=shape), path)
    with pytest.raises(modelexport.InputError, match=re.escape(reason)):
        retag(path, ours.path, by_value=True, overwrite=True, limits=limits)


@pytest.mark.xdist_group("cnn")
def test_repeated_names_of_nodes_do_not_matter_and_what_nothing_can_write_is_refused(
    exported: Exporter, tmp_path: Path
) -> None:
    ours = exported("cnn")
    path = tmp_path / "renamed.onnx"
    model = onnx.load(ours.path)
    rename_everything(model)
    for node in model.graph.node:
        node.name = "same"
    onnx.save(model, path)
    report = retag(path, ours.path, tmp_path / "out.onnx", by_value=True, overwrite=True)
    assert [node.module for node in report.document.nodes] == [node.module for node in ours.document.nodes]
    model.producer_name = "mark"
    path.write_bytes(model.SerializeToString().replace(b"mark", b"m\xffrk"))
    with pytest.raises(modelexport.FileFormatError, match="UnicodeDecodeError"):
        retag(path, ours.path, tmp_path / "out.onnx", by_value=True, overwrite=True)


@pytest.mark.xdist_group("cnn")
def test_torch_is_not_loaded(exported: Exporter, tmp_path: Path) -> None:
    renamed = tmp_path / "renamed.onnx"
    rename_file(exported("cnn").path, renamed)
    code = (
        "import sys\nfrom modelexport.cli.main import run\n"
        "try:\n    run()\nexcept SystemExit as end:\n"
        "    sys.exit(end.code or ('torch was loaded' if 'torch' in sys.modules else 0))"
    )
    words = ["retag", str(renamed), "--from", str(exported("cnn").path), "--by-value", "--force"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "matched by value" in done.stdout
