"""Files that crash onnxruntime, never end or ask for any amount of memory, given to the commands that run a file."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from tests.support.commands_in_process import run_commands
from tests.support.hostile_graphs import DOUBLE, endless_loop, function_chain, huge_tensor, model

import modelexport
from modelexport.analysis import Severity
from modelexport.graph.digest import graph_hash
from modelexport.graph.node_ids import nodes_with_ids, operation
from modelexport.hierarchy.document_codec import encode_document
from modelexport.limits import RunLimits
from modelexport.storage.transaction import sidecar_path
from modelexport.verification.contamination_by_value import validate_owners_by_value


@dataclasses.dataclass(frozen=True)
class Hostile:
    """A graph, and how a run of it ends under these limits."""

    make: Callable[..., onnx.ModelProto]
    reason: str
    limits: RunLimits = RunLimits()  # noqa: RUF009  frozen
    options: tuple[str, ...] = ()


HOSTILE = {
    "function chain": Hostile(lambda shape: function_chain(5000, shape), "onnxruntime crashed (SIGSEGV"),
    "endless loop": Hostile(endless_loop, "onnxruntime timed out after 1 s", RunLimits(seconds=1), ("--timeout", "1")),
    "huge tensor": Hostile(
        huge_tensor,
        "onnxruntime ran out of memory, its limit is 1 GiB",
        RunLimits(memory_bytes=2**30),
        ("--memory-limit", "1"),
    ),
}
every_file = pytest.mark.parametrize("name", HOSTILE)
pytestmark = pytest.mark.xdist_group("hostile")


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + x


def make_model() -> torch.nn.Module:
    return Doubling()


X = torch.arange(1, 17, dtype=torch.float32)


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> modelexport.HierarchyDocument:
    """The document of a harmless file."""
    path = tmp_path_factory.mktemp("harmless") / "file.onnx"
    onnx.save(model(DOUBLE, shape=(16,)), path)
    return modelexport.tag_file(path, make_model(), X, overwrite=True).document


@pytest.fixture
def hostile(name: str, document: modelexport.HierarchyDocument, tmp_path: Path) -> Path:
    """The file, with a sidecar that says of each node what its author wants, and the right hash."""
    path = tmp_path / "file.onnx"
    proto = HOSTILE[name].make(shape=(16,))
    onnx.save(proto, path)
    graph = ir.from_proto(proto)
    nodes = tuple(
        msgspec.structs.replace(document.nodes[0], id=identity, op=operation(node))
        for identity, node in nodes_with_ids(graph)
    )
    forged = msgspec.structs.replace(document, graph_hash=graph_hash(graph), nodes=nodes)
    sidecar_path(path).write_bytes(encode_document(forged))
    return path


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """Each ends soon, and takes no more memory than this process has anyway."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.monotonic()
    yield
    assert time.monotonic() - start < 200
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20


@every_file
def test_tag_is_an_error_and_writes_nothing(name: str, hostile: Path) -> None:
    content = hostile.read_bytes()
    with pytest.raises(modelexport.ModelExportError) as caught:
        modelexport.tag_file(hostile, make_model(), X, overwrite=True, limits=HOSTILE[name].limits)
    assert HOSTILE[name].reason in str(caught.value)
    assert hostile.read_bytes() == content


@every_file
def test_verify_reports_it_as_a_failed_module(name: str, hostile: Path) -> None:
    report = modelexport.verify_modules(hostile, make_model(), X, limits=HOSTILE[name].limits)
    assert not report.passed
    assert HOSTILE[name].reason in report.whole_run_error
    assert [call.reason for call in report.calls] == ["failed"]
    assert HOSTILE[name].reason in report.calls[0].explanation


CRASHES = {"function chain"}


@every_file
def test_validate_with_a_model_is_an_error(name: str, hostile: Path) -> None:
    if name in CRASHES:
        # A file on which onnxruntime crashes is wrong; one that exceeds the limits is not known to be.
        report = validate_owners_by_value(hostile, make_model(), X, limits=HOSTILE[name].limits)
        assert [(finding.rule, finding.severity) for finding in report.findings] == [("outputs", Severity.ERROR)]
        assert HOSTILE[name].reason in report.findings[0].message
        return
    with pytest.raises(modelexport.InputError) as caught:
        validate_owners_by_value(hostile, make_model(), X, limits=HOSTILE[name].limits)
    assert f"onnxruntime cannot run {hostile} on these inputs: {HOSTILE[name].reason}" in str(caught.value)


@pytest.mark.parametrize("name", ["huge tensor"])
def test_commands_end_with_our_exit_codes(name: str, hostile: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "inputs.npz", x=X.numpy())
    common = ["--model", "tests.integration.test_hostile_files:make_model", "--inputs", tmp_path / "inputs.npz"]
    common += HOSTILE[name].options
    tagged, verified, validated = run_commands(
        [
            ["tag", hostile, "-o", tmp_path / "out.onnx", *common],
            ["verify", hostile, *common],
            ["validate", hostile, "--check-contamination", *common],
        ]
    )
    reason = HOSTILE[name].reason
    assert (tagged.code, verified.code, validated.code) == (2, 1, 2)
    for said in (tagged.stderr, verified.stdout + verified.stderr, validated.stderr):
        assert reason in " ".join(said.split())
    assert not (tmp_path / "out.onnx").exists()
