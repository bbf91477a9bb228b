"""What the bodies of a model's nodes compute: each is run as a model of its own, on what it reads from around it.

So both branches of a decision are seen, on whatever inputs. Of a loop it is the last round.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from modelexport.errors import ModelExportError

Array = npt.NDArray[Any]
# Runs a model on inputs, and gives these of its tensors.
Run = Callable[[onnx.ModelProto, Mapping[str, Array], Sequence[str]], list[Any]]
# Called with the way to a body (``If_3/then_branch/``), a tensor that it is handed or makes, and its content.
InnerReceiver = Callable[[str, str, Array], None]

# What only an operator has whose body does not say whether to go on.
_WITHOUT_CONDITION = "num_scan_inputs"
_PER_OUTPUT = ("scan_output_axes", "scan_output_directions")


def run_bodies(model: onnx.ModelProto, feeds: Mapping[str, Array], run: Run, receive: InnerReceiver) -> None:
    """Run every body, those in bodies too; one that cannot be run by itself is left out.

    Args:
        model: The model; it is not changed.
        feeds: Its inputs.
        run: How to run a model.
        receive: Called with each tensor that a node in a body makes, or that the body is handed in the round.
    """
    waiting = [_Scope("", model, feeds)]
    while waiting:
        scope = waiting.pop()
        for prefix, body, formal in _entered(scope, run):
            inner = _as_model(scope, body, formal)
            if inner is None:
                continue
            made = [name for node in body.node for name in node.output if name]
            try:
                results = run(inner.model, inner.feeds, made)
            except ModelExportError:
                # A branch that is not taken may make no sense on these inputs.
                continue
            for name, value in (*formal.items(), *zip(made, results, strict=True)):
                if isinstance(value, np.ndarray):
                    receive(prefix, name, value)
            waiting.append(dataclasses.replace(inner, prefix=prefix))


@dataclasses.dataclass(frozen=True)
class _Scope:
    """A graph that can be run, and the identities' beginning of the nodes in it; `known` is what bodies read of it."""

    prefix: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    known: dict[str, Array] = dataclasses.field(default_factory=dict)


def _entered(scope: _Scope, run: Run) -> Iterator[tuple[str, onnx.GraphProto, dict[str, Array]]]:
    """The bodies in a scope, each with the beginning of its nodes' identities and what it is handed in its last
    round."""
    graph = scope.model.graph
    bodies = [body for node in graph.node for _, body in _bodies(node)]
    if not bodies:
        return
    read = {name for body in bodies for name in _free(body)}
    wanted = [name for node in graph.node for name in node.output if name in read]
    scope.known.update(scope.feeds)
    rounds: dict[str, Array] = {}
    shown, names = _with_rounds_shown(scope.model)
    for model, more in ((shown, names), (scope.model, [])) if names else ((scope.model, []),):
        if not wanted and not more:
            break
        try:
            found = dict(zip((*wanted, *more), run(model, scope.feeds, [*wanted, *more]), strict=True))
        except ModelExportError:
            # Without the rounds there are still the branches.
            continue
        arrays = {name: value for name, value in found.items() if isinstance(value, np.ndarray)}
        scope.known.update({name: arrays[name] for name in wanted if name in arrays})
        rounds = {name: arrays[name][-1] for name in more if name in arrays and len(arrays[name])}
        break
    for position, (identity, node) in enumerate(_identified(graph, scope.prefix)):
        for name, body in _bodies(node):
            formal = {value.name: rounds.get(_shown(position, value.name)) for value in body.input}
            given = {key: np.asarray(value) for key, value in formal.items() if value is not None}
            if len(given) == len(formal):
                yield f"{identity}/{name}/", body, given


def _with_rounds_shown(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[str]]:
    """The model with what each round of its loops is handed as further results, one behind the other."""
    if not any(body.input for node in model.graph.node for _, body in _bodies(node)):
        return model, []
    shown, names = copy.deepcopy(model), list[str]()
    for position, node in enumerate(shown.graph.node):
        bodies = _bodies(node)
        if len(bodies) != 1 or not bodies[0][1].input:
            continue
        _, body = bodies[0]
        goes_on = not any(attribute.name == _WITHOUT_CONDITION for attribute in node.attribute)
        # Results that nobody reads may be left out; nothing can come behind them then.
        left_out = [""] * (len(body.output) - goes_on - len(node.output))
        results = [name or _shown(position, f"#{n}") for n, name in enumerate((*node.output, *left_out))]
        del node.output[:]
        node.output.extend(results)
        for value in body.input:
            name = _shown(position, value.name)
            body.node.append(helper.make_node("Identity", [value.name], [name]))
            body.output.append(helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, None))
            node.output.append(name)
            names.append(name)
            for attribute in node.attribute:
                if attribute.name in _PER_OUTPUT:
                    attribute.ints.append(0)
    return shown, names


def _shown(position: int, name: str) -> str:
    """What a node that holds a loop gives one more result, for what its rounds are handed."""
    return f"modelexport.rounds/{position}/{name}"


def _as_model(around: _Scope, body: onnx.GraphProto, formal: Mapping[str, Array]) -> _Scope | None:
    """A body as a model: what it reads from around it are its inputs, but for weights; None where one is unknown."""
    weights = {weight.name: weight for weight in around.model.graph.initializer}
    free = _free(body)
    if not all(name in weights or name in around.known for name in free):
        return None
    feeds = {**formal, **{name: around.known[name] for name in free if name in around.known}}
    model = onnx.ModelProto(ir_version=around.model.ir_version)
    model.opset_import.extend(around.model.opset_import)
    model.functions.extend(around.model.functions)
    model.graph.name = body.name or "body"
    model.graph.node.extend(body.node)
    model.graph.initializer.extend(body.initializer)
    model.graph.initializer.extend(weights[name] for name in free if name not in feeds)
    for name, array in feeds.items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
    return _Scope("", model, feeds)


def _identified(graph: onnx.GraphProto, prefix: str) -> Iterator[tuple[str, onnx.NodeProto]]:
    for position, node in enumerate(graph.node):
        yield prefix + next((name for name in node.output if name), f"#{position}"), node


def _bodies(node: onnx.NodeProto) -> list[tuple[str, onnx.GraphProto]]:
    return [(attribute.name, attribute.g) for attribute in node.attribute if attribute.HasField("g")]


def _free(graph: onnx.GraphProto) -> list[str]:
    """The names that a graph reads and does not have itself, each once."""
    bound = {value.name for value in graph.input} | {weight.name for weight in graph.initializer}
    read: dict[str, None] = {}
    for node in graph.node:
        bound.update(node.output)
        read.update(dict.fromkeys(node.input))
        for _, body in _bodies(node):
            read.update(dict.fromkeys(_free(body)))
    read.update({value.name: None for value in graph.output})
    return [name for name in read if name and name not in bound]
