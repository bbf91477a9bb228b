"""Mutations of a model that keep it a model: what only somebody who knows the format would think of."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from random import Random

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper

from tests.fuzz import nasty

Mutation = Callable[[Random, onnx.ModelProto], object]


def _graphs(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found, waiting = [], [model.graph]
    while waiting:
        graph = waiting.pop()
        found.append(graph)
        waiting += [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return found


def _nodes(draw: Random, model: onnx.ModelProto) -> list[onnx.NodeProto]:
    graphs = [*_graphs(model), *model.functions]
    chosen = [*draw.choice(graphs).node] or [*model.graph.node]
    return chosen or [model.graph.node.add(op_type="Relu", input=["x"], output=["y"])]


def _node(draw: Random, model: onnx.ModelProto) -> onnx.NodeProto:
    return draw.choice(_nodes(draw, model))


def _tensor(draw: Random, model: onnx.ModelProto) -> onnx.TensorProto:
    """A weight, a tensor in an attribute, or a new one: in a graph, a subgraph, a function, a sparse weight."""
    how = draw.randrange(5)
    graph = draw.choice(_graphs(model))
    if how == 0 and graph.initializer:
        return draw.choice(graph.initializer)
    fresh = TensorProto(name=nasty.name(draw), data_type=TensorProto.FLOAT, dims=[2])
    if how == 1:
        sparse = graph.sparse_initializer.add()
        sparse.dims.append(4)
        sparse.values.CopyFrom(fresh)
        sparse.indices.CopyFrom(TensorProto(name="i", data_type=TensorProto.INT64, dims=[2], int64_data=[0, 1]))
        return draw.choice((sparse.values, sparse.indices))
    if how == 2:
        return graph.initializer.add(name=fresh.name, data_type=1, dims=[2])
    attribute = _node(draw, model).attribute.add(name=draw.choice(("value", "extra")), type=onnx.AttributeProto.TENSOR)
    if how == 3:
        attribute.type = onnx.AttributeProto.TENSORS
        return attribute.tensors.add(name=fresh.name, data_type=1, dims=[2])
    attribute.t.CopyFrom(fresh)
    return attribute.t


def _duplicate_node(draw: Random, model: onnx.ModelProto) -> None:
    graph = draw.choice([*_graphs(model), *model.functions])
    if graph.node:
        graph.node.append(draw.choice(graph.node))


def _delete_node(draw: Random, model: onnx.ModelProto) -> None:
    graph = draw.choice([*_graphs(model), *model.functions])
    if graph.node:
        del graph.node[draw.randrange(len(graph.node))]


def _shuffle_nodes(draw: Random, model: onnx.ModelProto) -> None:
    nodes = list(model.graph.node)
    draw.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _rewire(draw: Random, model: onnx.ModelProto) -> None:
    """An input is another's output: nodes that wait for each other, for themselves, for nothing."""
    node, other = _node(draw, model), _node(draw, model)
    names = [*other.output, *node.output, *other.input, nasty.name(draw)]
    if node.input:
        node.input[draw.randrange(len(node.input))] = draw.choice(names)
    else:
        node.input.append(draw.choice(names))


def _same_output(draw: Random, model: onnx.ModelProto) -> None:
    node, other = _node(draw, model), _node(draw, model)
    if node.output and other.output:
        node.output[0] = draw.choice(other.output)


def _outputs(draw: Random, model: onnx.ModelProto) -> None:
    node = _node(draw, model)
    how = draw.randrange(4)
    if how == 0:
        del node.output[:]
    elif how == 1:
        node.output.extend(["", "", nasty.name(draw)])
    elif how == 2:
        node.output.insert(0, "")
    else:
        node.output.extend([node.output[0]] * 2 if node.output else ["z"])


def _name(draw: Random, model: onnx.ModelProto) -> None:
    """One name, anywhere, is a nasty one; everywhere it is used, or there alone."""
    node, new = _node(draw, model), nasty.name(draw)
    how = draw.randrange(10)
    if how == 0:
        node.name = new
    elif how == 1:
        node.op_type = new
    elif how == 2:
        node.domain = new
    elif how == 3 and node.output:
        old = node.output[0]
        for other in model.graph.node:
            for names in (other.input, other.output):
                for position, name in enumerate(names):
                    if name == old:
                        names[position] = new
    elif how == 4 and node.output:
        node.output[0] = new
    elif how == 5 and model.graph.initializer:
        draw.choice(model.graph.initializer).name = new
    elif how == 6:
        model.graph.name = new
    elif how == 7:
        draw.choice([*model.graph.input, *model.graph.output] or [model.graph.input.add()]).name = new
    elif how == 8 and node.attribute:
        draw.choice(node.attribute).name = new
    else:
        model.producer_name = new


def _unnamed(draw: Random, model: onnx.ModelProto) -> None:
    for graph in _graphs(model):
        for node in graph.node:
            if draw.random() < 0.7:
                node.name = ""


def _attribute(draw: Random, model: onnx.ModelProto) -> None:
    node = _node(draw, model)
    attribute = draw.choice(node.attribute) if node.attribute else node.attribute.add(name="a")
    how = draw.randrange(7)
    if how == 0:
        attribute.type = draw.randrange(15)
    elif how == 1:
        attribute.ref_attr_name = nasty.name(draw)
    elif how == 2:
        attribute.f, attribute.i = float("nan"), nasty.number(draw)
        attribute.s = b"\xff\xfe"
        attribute.floats.extend([1e38, float("inf")])
    elif how == 3:
        node.attribute.append(attribute)
    elif how == 4:
        attribute.ints.extend([nasty.number(draw) for _ in range(4)])
        attribute.type = onnx.AttributeProto.INTS
    elif how == 5:
        attribute.strings.extend([b"\xff", nasty.name(draw).encode()])
        attribute.type = onnx.AttributeProto.STRINGS
    else:
        attribute.graphs.add(name="g").node.add(op_type="Relu", input=["x"], output=["y"])
        attribute.type = draw.choice((onnx.AttributeProto.GRAPHS, onnx.AttributeProto.GRAPH))


def _nested(draw: Random, model: onnx.ModelProto) -> None:
    graph = model.graph
    # In place: protobuf copies no message that is deeper than it reads.
    for _ in range(draw.choice((1, 5, 20, 30, 40))):
        node = graph.node.add(op_type="If", input=["c"], output=["y"])
        graph = node.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g
    graph.node.add(op_type="Relu", input=["x"], output=["y"])


def _functions(draw: Random, model: onnx.ModelProto) -> None:
    how = draw.randrange(6)
    if how == 0 and model.functions:
        function = draw.choice(model.functions)
        function.node.add(op_type=function.name, domain=function.domain, input=["x"], output=["q"])
    elif how == 1 and model.functions:
        model.functions.append(draw.choice(model.functions))
    elif how == 2 and model.functions:
        del model.functions[draw.randrange(len(model.functions))]
    elif how == 3:
        # Each calls the next twice, or just once and very often.
        length, times = draw.choice(((30, 2), (12, 2), (200, 1)))
        for number in range(length):
            function = model.functions.add(name=f"B{number}", domain="bomb", input=["x"], output=["y"])
            for _ in range(times):
                function.node.add(op_type=f"B{number + 1}", domain="bomb", input=["x"], output=["y"])
        model.graph.node.add(op_type="B0", domain="bomb", input=["x"], output=["boom"])
    elif how == 4:
        function = model.functions.add(name=nasty.name(draw), domain=nasty.name(draw), overload=nasty.name(draw))
        function.input.append(nasty.name(draw))
        function.node.add(op_type="Relu", input=[nasty.name(draw)], output=[nasty.name(draw)])
    else:
        model.functions.add(name="Relu", domain="", input=["x"], output=["y"]).node.add(
            op_type="Neg", input=["x"], output=["y"]
        )


def _dims(draw: Random, model: onnx.ModelProto) -> None:
    dims = [draw.choice((2**40, -1, 0, -(2**40), 2**62, 3)) for _ in range(draw.choice((1, 2, 8)))]
    tensor = _tensor(draw, model)
    del tensor.dims[:]
    tensor.dims.extend(dims)
    if model.graph.value_info and draw.random() < 0.3:
        shape = draw.choice(model.graph.value_info).type.tensor_type.shape
        for dim in dims:
            shape.dim.add(dim_value=dim)


def _content(draw: Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(draw, model)
    how = draw.randrange(6)
    if how == 0:
        tensor.float_data.extend([1.0, 2.0])
        tensor.raw_data = b"\0" * 8
    elif how == 1:
        tensor.raw_data = tensor.raw_data[:-1] + b"xyz"
    elif how == 2:
        tensor.data_type = draw.choice((0, -1, 8, 9, 14, 16, 17, 22, 23, 24, 25, 99, 2**31 - 1))
    elif how == 3:
        tensor.string_data.extend([b"\xff", b"x" * 40])
        tensor.data_type = TensorProto.STRING
    elif how == 4:
        tensor.segment.begin = tensor.segment.end = 5
    else:
        tensor.ClearField("raw_data")


def _initializers(draw: Random, model: onnx.ModelProto) -> None:
    graph = draw.choice(_graphs(model))
    if not graph.initializer:
        graph.initializer.add(name="w", data_type=1, dims=[1], float_data=[1])
    weight = draw.choice(graph.initializer)
    how = draw.randrange(4)
    if how == 0:
        graph.initializer.append(weight)
    elif how == 1:
        graph.input.append(helper.make_tensor_value_info(weight.name, draw.choice((1, 7)), [nasty.number(draw)]))
    elif how == 2:
        node = _node(draw, model)
        weight.name = node.output[0] if node.output else ""
    else:
        weight.name = f"{nasty.name(draw)}.weight"


def _versions(draw: Random, model: onnx.ModelProto) -> None:
    how = draw.randrange(4)
    if how == 0:
        model.ir_version = draw.choice((0, 1, 3, 4, 9, 10, 13, 99, -1, 2**62))
    elif how == 1:
        del model.opset_import[:]
    elif how == 2:
        model.opset_import.add(domain=draw.choice(("", "ai.onnx", nasty.name(draw))), version=nasty.number(draw))
    elif model.opset_import:
        model.opset_import[0].version = nasty.number(draw)


def _metadata(draw: Random, model: onnx.ModelProto) -> None:
    scopes = draw.choice(
        (
            repr(["", nasty.name(draw), nasty.name(draw), "op"]),
            "['', " + "[" * 5000,
            "['" + "\\" * 999,
            repr([""] * 500),
            "__import__('os').system('touch pwned')",
            "{'a': 1}",
            nasty.name(draw),
        )
    )
    node = _node(draw, model)
    keys = ("pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy", "namespace")
    ours = ("pkg.modelexport.tag", "pkg.modelexport.module", "pkg.modelexport.kind", "pkg.modelexport.version")
    if draw.random() < 0.5:
        node.ClearField("doc_string")
        for key in keys[:2]:
            node.metadata_props.add(key=key, value=scopes)
    else:
        for key in ours:
            node.metadata_props.add(key=key, value=nasty.name(draw))
        if draw.random() < 0.5:
            node.ClearField("doc_string")
    model.metadata_props.add(key=nasty.name(draw), value=nasty.name(draw))


def _doc_string(draw: Random, model: onnx.ModelProto) -> None:
    how = draw.randrange(4)
    for node in [*model.graph.node] if draw.random() < 0.3 else [_node(draw, model)]:
        if how == 0:
            node.doc_string = draw.choice(
                ("{" * 5000, '{"a":' * 50_000, "[]", '{"hierarchy_tags": 5}', "{}", "\x1b[0m")
            )
            continue
        try:
            content = json.loads(node.doc_string)
            content["module"] = nasty.name(draw)
        except (ValueError, TypeError):
            content = {
                "hierarchy_tags": [],
                "hierarchy_count": 1,
                "hierarchy_method": "",
                "module": "",
                "kind": "exact",
            }
        tag = draw.choice((nasty.name(draw), "/A/B@99999999", "/A@1000000000/B", "/", "/A//B"))
        content["hierarchy_path"] = tag
        content["hierarchy_tags"] = [tag, nasty.name(draw), "/B"][: draw.randrange(4)]
        content["kind"] = draw.choice(("exact", "fused", nasty.name(draw)))
        node.doc_string = json.dumps(content, ensure_ascii=False)


def _pieces(draw: Random, model: onnx.ModelProto) -> None:
    how = draw.randrange(6)
    if how == 0:
        model.ClearField("graph")
    elif how == 1:
        del model.graph.node[:]
    elif how == 2:
        del model.graph.output[:]
    elif how == 3:
        del model.graph.input[:]
    elif how == 4:
        model.graph.output.extend([model.graph.output[0]] if model.graph.output else [])
    else:
        model.training_info.add().algorithm.node.add(op_type="Relu", input=["x"], output=["y"])


def _external(draw: Random, model: onnx.ModelProto) -> None:
    tensor = _tensor(draw, model)
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    if draw.random() < 0.8:
        tensor.data_location = TensorProto.EXTERNAL
    entries = [("location", draw.choice((*nasty.LOCATIONS, "weights.data", "weights.data")))]
    keys = [key for key in ("offset", "length", "checksum") if draw.random() < 0.4]
    entries += [(key, draw.choice(nasty.EXTENTS)) for key in keys]
    if draw.random() < 0.1:
        entries.append(("location", "../outside/canary.data"))
    draw.shuffle(entries)
    for key, value in entries:
        tensor.external_data.add(key=key, value=value)


MUTATIONS: tuple[Mutation, ...] = (
    _duplicate_node,
    _delete_node,
    _shuffle_nodes,
    _rewire,
    _rewire,
    _same_output,
    _outputs,
    _name,
    _name,
    _unnamed,
    _attribute,
    _attribute,
    _nested,
    _functions,
    _functions,
    _dims,
    _content,
    _initializers,
    _versions,
    _metadata,
    _metadata,
    _doc_string,
    _doc_string,
    _pieces,
    _external,
    _external,
    _external,
)


def mutate_model(draw: Random, model: onnx.ModelProto) -> list[str]:
    """Change a model in place; gives the names of what was done."""
    chosen = [draw.choice(MUTATIONS) for _ in range(draw.choice((1, 1, 2, 3)))]
    for mutation in chosen:
        # One before it may have nested subgraphs deeper than protobuf copies, or text deeper than json reads.
        with contextlib.suppress(DecodeError, RecursionError):
            mutation(draw, model)
    return [mutation.__name__.strip("_") for mutation in chosen]
