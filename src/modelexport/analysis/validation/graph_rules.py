"""Rules about the ONNX graph: the ONNX checker, shape inference, and equality with a baseline file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from modelexport.analysis.validation.rule import Rule, ValidatedFile, Violation
from modelexport.storage import strip_hierarchy


def _check_onnx(file: ValidatedFile) -> Iterator[Violation]:
    if file.model_checks.checker:
        yield Violation(file.model_checks.checker)


def _check_shapes(file: ValidatedFile) -> Iterator[Violation]:
    if file.model_checks.shapes:
        yield Violation(file.model_checks.shapes)


GRAPH_RULES = (
    Rule("onnx-checker", "the ONNX checker accepts the file", _check_onnx),
    Rule("shape-inference", "strict shape inference finds no contradiction", _check_shapes),
)


TOPOLOGY = "topology"


def _check_topology(file: ValidatedFile) -> Iterator[Violation]:
    """Nodes, names, order, attributes and the types of weights."""
    if file.baseline is None:
        return
    ours = strip_hierarchy(file.model)
    theirs = strip_hierarchy(file.baseline)
    yield from _first_difference("input", list(ours.graph.input), list(theirs.graph.input))
    yield from _first_difference("output", list(ours.graph.output), list(theirs.graph.output))
    yield from _first_difference("node", list(ours.graph.node), list(theirs.graph.node))
    yield from _first_difference("function", list(ours.functions), list(theirs.functions))
    mine, other = ({t.name: (t.data_type, tuple(t.dims)) for t in m.graph.initializer} for m in (ours, theirs))
    for name in sorted(mine.keys() | other.keys()):
        if mine.get(name) != other.get(name):
            yield Violation(f"the weight {name!r} differs: {mine.get(name)} here, {other.get(name)} in the baseline")
    opsets, others = ({o.domain: o.version for o in m.opset_import} for m in (ours, theirs))
    if opsets != others:
        yield Violation(f"the opsets differ: {opsets} here, {others} in the baseline")


def _first_difference(what: str, ours: list[Any], theirs: list[Any]) -> Iterator[Violation]:
    for position, (mine, other) in enumerate(zip(ours, theirs, strict=False)):
        if mine.SerializeToString(deterministic=True) != other.SerializeToString(deterministic=True):
            yield Violation(
                f"the first {what} that differs is number {position}: {_label(mine)} here, {_label(other)} in the "
                "baseline"
            )
            return
    if len(ours) != len(theirs):
        yield Violation(f"the file has {len(ours)} {what}s, the baseline {len(theirs)}")


def _label(item: Any) -> str:
    kind = getattr(item, "op_type", "")
    names = ", ".join(getattr(item, "output", ())) or item.name
    return f"{kind} {names!r}".strip()


BASELINE_RULES = (
    Rule(
        TOPOLOGY,
        "without our metadata, the graph equals the baseline's",
        _check_topology,
        fix="export both with the same versions and options",
        optional=True,
    ),
)
