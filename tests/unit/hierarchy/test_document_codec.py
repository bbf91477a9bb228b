"""Documents of any content survive writing and reading, and fit the schema."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modelexport.errors import FileFormatError
from modelexport.hierarchy.calls import BoundaryTensor, CallId
from modelexport.hierarchy.document import (
    SCHEMA_VERSION,
    CallRecord,
    HierarchyDocument,
    ModuleRecord,
    NodeRecord,
    Producer,
)
from modelexport.hierarchy.document_codec import decode_document, encode_document
from modelexport.hierarchy.modules import ForwardArgument, TensorInfo
from modelexport.hierarchy.tags import TagView

# --- generated documents ---------------------------------------------------------------------------------------
SOURCE = "some/where/model_hierarchy.json"


# Whatever a name can hold but half a surrogate pair, which no JSON file can.
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


texts = st.lists(text, max_size=3).map(tuple)


tensors = st.builds(
    TensorInfo, shape=st.lists(st.integers(0, 2**15) | text, max_size=4).map(tuple), dtype=st.sampled_from(["float32"])
)


named_tensors = st.dictionaries(text, tensors, max_size=2)


boundaries = st.lists(
    st.builds(BoundaryTensor, name=text, tensor=st.none() | text, info=st.none() | tensors), max_size=2
).map(tuple)


modules = st.builds(
    ModuleRecord,
    path=text,
    class_name=text,
    qualified_class=text,
    tag=text,
    visible=st.booleans(),
    aliases=texts,
    forward_arguments=st.lists(
        st.builds(ForwardArgument, name=text, kind=text, required=st.booleans()), max_size=2
    ).map(tuple),
    parameters=named_tensors,
    buffers=named_tensors,
    children=st.dictionaries(text, text, max_size=2),
)


calls = st.builds(
    CallRecord,
    id=text,
    path=text,
    index=st.integers(0, 99),
    tag=text,
    parent=st.none() | text,
    inputs=boundaries,
    outputs=boundaries,
)


nodes = st.builds(
    NodeRecord,
    id=text,
    op=text,
    module=text,
    tag=text,
    kind=st.sampled_from(["exact", "fused", "merged", "folded", "inferred"]),
    confidence=st.floats(0, 1),
    reason=text,
    contributors=texts,
)


documents = st.builds(
    HierarchyDocument,
    schema_version=st.just(SCHEMA_VERSION),
    producer=st.builds(Producer, name=text, version=text),
    strategy=text,
    exporter=text,
    graph_hash=text,
    tag_view=st.builds(
        TagView, torch_nn_exceptions=st.sampled_from(["all", "none"]) | texts, include=texts, exclude=texts
    ),
    modules=st.lists(modules, max_size=2).map(tuple),
    calls=st.lists(calls, max_size=2).map(tuple),
    nodes=st.lists(nodes, max_size=2).map(tuple),
)


def coherent(document: HierarchyDocument) -> HierarchyDocument:
    """The document with its parts fitted together: a root, calls of its modules, nodes of its calls."""
    children = [msgspec.structs.replace(m, path=f"m{i}") for i, m in enumerate(document.modules)]
    root = ModuleRecord(path="", class_name="Root", qualified_class="pkg.Root", tag="/Root", visible=True)
    paths = ["", *(module.path for module in children)]
    top = CallRecord(id="", path="", index=0, tag="/Root")
    made = [
        msgspec.structs.replace(call, id=str(CallId(path, i)), path=path, index=i, parent="")
        for i, call in enumerate(document.calls, start=1)
        for path in [paths[i % len(paths)]]
    ]
    names = ["", *(call.id for call in made)]
    return msgspec.structs.replace(
        document,
        modules=(root, *children),
        calls=(top, *made),
        nodes=tuple(
            msgspec.structs.replace(node, module=names[i % len(names)], contributors=(names[-1],))
            for i, node in enumerate(document.nodes)
        ),
    )


@settings(max_examples=60, deadline=None)
@given(document=documents.map(coherent))
def test_document_is_the_same_after_it_was_written_and_read(document: HierarchyDocument) -> None:
    data = encode_document(document)
    assert decode_document(data, SOURCE) == document
    assert encode_document(decode_document(data, SOURCE)) == data


@settings(max_examples=40, deadline=None)
@given(document=documents)
def test_schema_admits_every_document_that_can_be_written(
    validator: jsonschema.Draft202012Validator, document: HierarchyDocument
) -> None:
    validator.validate(json.loads(encode_document(document)))


@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=64) | text.map(str.encode))
def test_any_bytes_are_a_document_or_a_file_format_error(data: bytes) -> None:
    with pytest.raises(FileFormatError, match=SOURCE):
        decode_document(data, SOURCE)
