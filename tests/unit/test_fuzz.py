"""Mutated files and sidecars through every reader: a result or one error of ours, soon, and in bounded memory.

``make fuzz`` runs many more of them than a test run does (MODELEXPORT_FUZZ says how many).
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from tests.conftest import Exporter

from modelexport.analysis.report import analyze
from modelexport.analysis.selection import select
from modelexport.artifact import sidecar_path
from modelexport.errors import ModelExportError
from modelexport.loading import load
from modelexport.reading import read_model

INPUTS = int(os.environ.get("MODELEXPORT_FUZZ", "2000"))
LONGEST_S = 10.0
MOST_MEMORY = 512 * 2**20
# Values at which lengths and numbers change their form.
EDGES = [0, 1, 2, 0x7F, 0x80, 0xFF, 0x0A, 0x12, 0x3A, ord('"'), ord("{"), ord("["), ord("\\"), ord("/")]


def mutate(data: bytes, random_source: random.Random) -> bytes:
    """The data with a few places flipped, cut, doubled, moved, or overwritten by what is dangerous."""
    changed = bytearray(data)
    for _ in range(random_source.choice((1, 1, 2, 4, 16))):
        if not changed:
            break
        start = random_source.randrange(len(changed))
        length = min(len(changed) - start, random_source.choice((1, 1, 2, 4, 16, 64, 512)))
        how = random_source.randrange(7)
        if how == 0:
            changed[start] ^= 1 << random_source.randrange(8)
        elif how == 1:
            changed[start] = random_source.choice(EDGES)
        elif how == 2:
            del changed[start : start + length]
        elif how == 3:
            changed[start:start] = changed[start : start + length] * random_source.choice((1, 2, 50))
        elif how == 4:
            other = random_source.randrange(len(changed))
            changed[start : start + length] = changed[other : other + length]
        elif how == 5:
            changed[start:start] = random_source.randbytes(length)
        else:
            del changed[start:]
    return bytes(changed)


def rich_model() -> bytes:
    """A model with a bit of everything that readers follow: bodies, functions, external data, metadata, sparse."""

    def value(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])

    body = helper.make_graph([helper.make_node("Relu", ["x"], ["z"], name="/a/b/Relu")], "b", [], [value("z")])
    nodes = [
        helper.make_node("If", ["c"], ["y"], name="/a/If", then_branch=body, else_branch=body),
        helper.make_node("F", ["y"], ["w"], domain="local", axis=1, text="t", floats=[1.0, 2.0]),
        helper.make_node("Constant", [], ["k"], value=helper.make_tensor("t", TensorProto.FLOAT, [2], [1.0, 2.0])),
    ]
    for key, text in {
        "pkg.torch.onnx.name_scopes": "['', 'a', 'a.b', 'op']",
        "pkg.torch.onnx.class_hierarchy": "['m.Net', 'm.A', 'm.B', 'aten.op']",
    }.items():
        nodes[1].metadata_props.add(key=key, value=text)
    weight = TensorProto(name="a.b.weight", data_type=1, dims=[2], data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value="w.data")
    weight.external_data.add(key="offset", value="0")
    opset = [helper.make_opsetid("", 20)]
    inside = [helper.make_node("Relu", ["a"], ["b"])]
    function = helper.make_function("local", "F", ["a"], ["b"], inside, opset, ["axis"])
    graph = helper.make_graph(nodes, "g", [value("x")], [value("y")], [weight])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    values = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    graph.sparse_initializer.append(onnx.SparseTensorProto(values=values, indices=indices, dims=[2]))
    return helper.make_model(graph, opset_imports=opset, functions=[function], ir_version=10).SerializeToString()


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def attempts(path: Path) -> Iterator[Callable[[], object]]:
    yield lambda: read_model(path)
    yield lambda: load(path)
    yield lambda: analyze(path, resolution=True)
    yield lambda: select(path, "** and not op:Add")


def survive(path: Path) -> int:
    """Read a file in every way; how many ways gave a result."""
    results = 0
    for attempt in attempts(path):
        started = time.perf_counter()
        try:
            attempt()
            results += 1
        except ModelExportError as error:
            # One line that names the file, or what is wrong in it.
            assert str(error)  # noqa: PT017  what is tested is that nothing else is raised
        assert time.perf_counter() - started < LONGEST_S
    return results


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "w.data").write_bytes(bytes(8))
    return tmp_path


@pytest.mark.timeout(0 if INPUTS > 2000 else 300)
@pytest.mark.xdist_group("shared_block")
def test_mutated_models_give_a_result_or_an_error_of_ours(folder: Path, exported: Exporter) -> None:
    corpus = [rich_model(), exported("shared_block").path.read_bytes()]
    for seed in corpus:
        (folder / "model.onnx").write_bytes(seed)
        assert survive(folder / "model.onnx") == 4, "what is mutated is readable before"
    before, results = memory(), 0
    random_source = random.Random(6)
    for number in range(INPUTS // 2):
        path = folder / "model.onnx"
        path.write_bytes(mutate(corpus[number % len(corpus)], random_source))
        results += survive(path)
    # Some mutations do no harm, and most do.
    assert 0 < results < 4 * INPUTS // 2
    assert memory() - before < MOST_MEMORY


@pytest.mark.timeout(0 if INPUTS > 2000 else 300)
@pytest.mark.xdist_group("shared_block")
def test_mutated_sidecars_give_a_result_or_an_error_of_ours(folder: Path, exported: Exporter) -> None:
    path = folder / "model.onnx"
    path.write_bytes(exported("shared_block").path.read_bytes())
    seed = sidecar_path(exported("shared_block").path).read_bytes()
    before, results = memory(), 0
    random_source = random.Random(7)
    for _ in range(INPUTS // 2):
        sidecar_path(path).write_bytes(mutate(seed, random_source))
        results += survive(path)
    assert 0 < results < 4 * INPUTS // 2
    assert memory() - before < MOST_MEMORY
