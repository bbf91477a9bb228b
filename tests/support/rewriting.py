"""The tools that rewrite ONNX files, and an independent judge of what a hierarchy is worth after them."""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.version_converter
import onnxruntime
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quant_pre_process,
    quantize_dynamic,
    quantize_static,
)

from modelexport.hierarchy.document import HierarchyDocument

Feeds = dict[str, np.ndarray]
Tool = Callable[[Path, Path, Feeds], None]

MODELS = ("bert", "vit", "resnet", "gpt2")
_LEVELS = onnxruntime.GraphOptimizationLevel


def _optimize(level: onnxruntime.GraphOptimizationLevel, source: Path, target: Path, feeds: Feeds) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(target)
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(source), options, ["CPUExecutionProvider"])


def _optimize_transformer(source: Path, target: Path, feeds: Feeds) -> None:
    from onnxruntime.transformers.optimizer import optimize_model

    optimized = optimize_model(str(source), model_type="bert", num_heads=4, hidden_size=32, opt_level=0)
    optimized.save_model_to_file(str(target))


def _to_float16(source: Path, target: Path, feeds: Feeds) -> None:
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source)), target)


class _Calibration(CalibrationDataReader):
    def __init__(self, feeds: Feeds) -> None:
        self._left: Iterator[Feeds] = iter([feeds])

    def get_next(self) -> Feeds | None:
        return next(self._left, None)


def _quantize_statically(form: QuantFormat, source: Path, target: Path, feeds: Feeds) -> None:
    quantize_static(str(source), str(target), _Calibration(feeds), quant_format=form)


def _quantize_dynamically(source: Path, target: Path, feeds: Feeds) -> None:
    quantize_dynamic(str(source), str(target))


def _preprocess(source: Path, target: Path, feeds: Feeds) -> None:
    quant_pre_process(str(source), str(target))


def _convert_version(source: Path, target: Path, feeds: Feeds) -> None:
    onnx.save(onnx.version_converter.convert_version(onnx.load(source), 21), target)


def _slim(source: Path, target: Path, feeds: Feeds) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), target)


def _simplify(source: Path, target: Path, feeds: Feeds) -> None:
    import onnxsim

    onnx.save(onnxsim.simplify(onnx.load(source))[0], target)


TOOLS: dict[str, Tool] = {
    "onnxruntime basic": functools.partial(_optimize, _LEVELS.ORT_ENABLE_BASIC),
    "onnxruntime extended": functools.partial(_optimize, _LEVELS.ORT_ENABLE_EXTENDED),
    "onnxruntime all": functools.partial(_optimize, _LEVELS.ORT_ENABLE_ALL),
    "onnxruntime transformers": _optimize_transformer,
    "float16": _to_float16,
    "quantize_dynamic": _quantize_dynamically,
    "quantize_static QDQ": functools.partial(_quantize_statically, QuantFormat.QDQ),
    "quantize_static QOperator": functools.partial(_quantize_statically, QuantFormat.QOperator),
    "quant_pre_process": _preprocess,
    "onnx version converter": _convert_version,
    "onnxslim": _slim,
    "onnxsim": _simplify,
}


def rewrite(tool: str, source: Path, target: Path, feeds: Feeds) -> None:
    """Run a tool; what it says of itself is of no interest here."""
    logging.disable(logging.WARNING)
    try:
        TOOLS[tool](source, target, feeds)
    finally:
        logging.disable(logging.NOTSET)


# --- the judge -------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What is wrong with a rewritten model's hierarchy, and how much of the old one plain metadata keeps."""

    nodes: int
    unowned: list[str]
    untouched: int
    moved: list[str]
    unrelated: list[str]
    metadata_kept: int
    doc_string_kept: int


def judge(tagged: Path, before: HierarchyDocument, rewritten: Path, after: HierarchyDocument) -> Verdict:
    """Judge a hierarchy by the tensors of both files, read with plain onnx.

    A node is untouched if its outputs, operator and inputs are the same as before. A module's tensors are those that
    its nodes, or those of modules inside of it, read or made before. A node touches a module if it reads or makes one
    of them, itself or through tensors that the tool put in between. All tensors of a module may be gone where it was
    fused: then those of the modules it was fused with count, if they were its neighbours.
    """
    old, new = onnx.load(tagged), onnx.load(rewritten)
    records = {record.id: record for record in before.nodes}
    found = {record.id: record for record in after.nodes}
    touched = _tensors_of_modules(old, before)
    known = set().union(*touched.values())
    neighbours = _neighbours(new)
    old_nodes = {_identity(node): (node.op_type, list(node.input), list(node.output)) for node in old.graph.node}
    unowned, moved, unrelated, untouched = [], [], [], 0
    for number, node in enumerate(new.graph.node):
        identity = _identity(node)
        if identity not in found:
            unowned.append(identity)
            continue
        owner = found[identity].module
        if old_nodes.get(identity) == (node.op_type, list(node.input), list(node.output)):
            untouched += 1
            if owner != records[identity].module:
                moved.append(f"{identity}: {owner!r}, before {records[identity].module!r}")
        own = _with_neighbours(owner, found[identity].contributors, touched)
        if not _touches(number, new, own, known, neighbours):
            unrelated.append(f"{identity}: {owner!r}")
    nodes = list(new.graph.node)
    return Verdict(
        nodes=len(nodes),
        unowned=unowned,
        untouched=untouched,
        moved=moved,
        unrelated=unrelated,
        metadata_kept=sum(any(e.key == "pkg.modelexport.tag" for e in node.metadata_props) for node in nodes),
        doc_string_kept=sum("hierarchy_path" in node.doc_string for node in nodes),
    )


def _identity(node: onnx.NodeProto) -> str:
    return next(name for name in node.output if name)


def _tensors_of_modules(model: onnx.ModelProto, document: HierarchyDocument) -> dict[str, set[str]]:
    records = {record.id: record for record in document.nodes}
    parents = {call.id: call.parent for call in document.calls}
    tensors: dict[str, set[str]] = {}
    for node in model.graph.node:
        record = records[_identity(node)]
        for call in (record.module, *record.contributors):
            around: str | None = call
            while around is not None:
                tensors.setdefault(around, set()).update(_tensors(node))
                around = parents[around]
    return tensors


def _with_neighbours(owner: str, contributors: Iterable[str], tensors: dict[str, set[str]]) -> set[str]:
    """The tensors of a module, and those of contributors that share one with it, directly or through others."""
    found, left = set(tensors.get(owner, ())), list(contributors)
    while joined := [call for call in left if found & tensors.get(call, set())]:
        found = found.union(*(tensors[call] for call in joined))
        left = [call for call in left if call not in joined]
    return found


def _tensors(node: onnx.NodeProto) -> Iterable[str]:
    return [name for name in (*node.input, *node.output) if name]


def _neighbours(model: onnx.ModelProto) -> dict[str, list[int]]:
    neighbours: dict[str, list[int]] = {}
    for number, node in enumerate(model.graph.node):
        for name in _tensors(node):
            neighbours.setdefault(name, []).append(number)
    return neighbours


def _touches(
    start: int, model: onnx.ModelProto, tensors: set[str], known: set[str], neighbours: dict[str, list[int]]
) -> bool:
    seen, waiting = {start}, [start]
    while waiting:
        for name in _tensors(model.graph.node[waiting.pop()]):
            if name in tensors:
                return True
            if name not in known:
                waiting.extend(number for number in neighbours[name] if number not in seen)
                seen.update(neighbours[name])
    return False
