"""Selectors: the calls and nodes that each form selects, errors with positions, and robustness of the parser."""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from modelexport.analysis.query.glob import Pattern, Piece
from modelexport.analysis.query.selector_eval import parse_selector, select_calls, select_nodes
from modelexport.analysis.query.selector_parser import MAX_DEPTH, MAX_LENGTH, And, Not, Or, Term
from modelexport.errors import SelectorError
from modelexport.hierarchy.attribution import Attribution, Kind
from modelexport.hierarchy.calls import CallId, CallTree, ModuleCall
from modelexport.hierarchy.document import HierarchyDocument
from modelexport.hierarchy.modules import ModuleInfo, ModuleTree
from modelexport.hierarchy.tags import TagView
from modelexport.storage.document_builder import build_document

MODULES: dict[str, str] = {
    "": "pkg.Net",
    "stem": "pkg.Stem",
    "stem.conv": "torch.nn.modules.conv.Conv2d",
    "stem.norm": "torch.nn.modules.batchnorm.BatchNorm2d",
    "layers": "torch.nn.modules.container.ModuleList",
    "layers.0": "pkg.Layer",
    "layers.0.lin": "torch.nn.modules.linear.Linear",
    "layers.1": "pkg.Layer",
    "layers.1.lin": "torch.nn.modules.linear.Linear",
    "blk": "pkg.Block",
    "blk.lin": "torch.nn.modules.linear.Linear",
    "unused": "pkg.Unused",
    "and": "pkg.Odd (class)",
    "odd name": "pkg.Odd",
}
CALLS = {
    "stem": "",
    "stem.conv": "stem",
    "stem.norm": "stem",
    "layers.0": "",
    "layers.0.lin": "layers.0",
    "layers.1": "",
    "layers.1.lin": "layers.1",
    "blk": "",
    "blk.lin": "blk",
    "blk@1": "",
    "blk.lin@1": "blk@1",
    "and": "",
    "odd name": "",
}
# Identity: operation, owner, contributors.
NODES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "conv": ("Conv", "stem.norm", ("stem.conv",)),
    "mask": ("Where", "layers.0", ("layers.1",)),
    "lin0": ("Gemm", "layers.0.lin", ()),
    "act0": ("Relu", "layers.0", ()),
    "lin1": ("Gemm", "layers.1.lin", ()),
    "act1": ("com.microsoft::Gelu", "layers.1", ()),
    "b0": ("Gemm", "blk.lin", ()),
    "b1": ("Gemm", "blk.lin@1", ()),
    "sum": ("Add", "", ()),
    "odd": ("Neg", "and", ()),
    "out": ("Neg", "odd name", ()),
}


def make_document() -> HierarchyDocument:
    def info(path: str, qualified: str) -> ModuleInfo:
        aliases = ("block", "again") if path == "blk" else ()
        return ModuleInfo(path, qualified.rpartition(".")[2], qualified, aliases)

    def attribution(owner: str, contributors: tuple[str, ...]) -> Attribution:
        kind = Kind.EXACT if not contributors else Kind.FUSED if owner == "stem.norm" else Kind.MERGED
        return Attribution(CallId.parse(owner), kind, 1.0, "", tuple(map(CallId.parse, contributors)))

    calls = {}
    for text, parent in CALLS.items():
        call = CallId.parse(text)
        calls[call] = ModuleCall(call.path, call.index, CallId.parse(parent))
    return build_document(
        strategy="fx",
        exporter="dynamo",
        graph_hash="",
        view=TagView(),
        tree=ModuleTree({path: info(path, qualified) for path, qualified in MODULES.items()}),
        calls=CallTree(calls),
        nodes=[(name, op, attribution(owner, others)) for name, (op, owner, others) in NODES.items()],
    )


DOCUMENT = make_document()


def nodes(pattern: str, **options: Any) -> list[str]:
    return [node.id for node in select_nodes(DOCUMENT, pattern, **options)]


def calls(pattern: str) -> list[str]:
    return [call.id for call in select_calls(DOCUMENT, pattern)]


PICKED = {
    "stem": (["stem"], ["conv"]),
    "stem.conv": (["stem.conv"], ["conv"]),
    "layers.0": (["layers.0"], ["mask", "lin0", "act0"]),
    "path:layers.1": (["layers.1"], ["mask", "lin1", "act1"]),
    "layers.*": (["layers.0", "layers.1"], ["mask", "lin0", "act0", "lin1", "act1"]),
    "layers.[!0]": (["layers.1"], ["mask", "lin1", "act1"]),
    "layers.[0-1].lin": (["layers.0.lin", "layers.1.lin"], ["lin0", "lin1"]),
    "**.lin": (["layers.0.lin", "layers.1.lin", "blk.lin", "blk.lin@1"], ["lin0", "lin1", "b0", "b1"]),
    "layers.**": (["layers.0", "layers.0.lin", "layers.1", "layers.1.lin"], ["mask", "lin0", "act0", "lin1", "act1"]),
    "layers.**.lin": (["layers.0.lin", "layers.1.lin"], ["lin0", "lin1"]),
    "**.blk": (["blk", "blk@1"], ["b0", "b1"]),
    # a module that only holds others
    "layers": (["layers.0", "layers.1"], ["mask", "lin0", "act0", "lin1", "act1"]),
    "class:ModuleList": (["layers.0", "layers.1"], ["mask", "lin0", "act0", "lin1", "act1"]),
    # calls
    "blk": (["blk", "blk@1"], ["b0", "b1"]),
    "blk@0": (["blk"], ["b0"]),
    "call:blk": (["blk"], ["b0"]),
    "blk@1": (["blk@1"], ["b1"]),
    "blk@*": (["blk", "blk@1"], ["b0", "b1"]),
    "**@1": (["blk@1", "blk.lin@1"], ["b1"]),
    "again": (["blk", "blk@1"], ["b0", "b1"]),
    # tags
    "/Net/Layer.0": (["layers.0"], ["mask", "lin0", "act0"]),
    "/Net/Layer.*": (["layers.0", "layers.1"], ["mask", "lin0", "act0", "lin1", "act1"]),
    "/Net/Block": (["blk"], ["b0"]),
    "/Net/Block@1": (["blk@1"], ["b1"]),
    "/**/BatchNorm2d": (["stem.norm"], ["conv"]),
    "tag:**/Stem": (["stem"], ["conv"]),
    # classes
    "class:Layer": (["layers.0", "layers.1"], ["mask", "lin0", "act0", "lin1", "act1"]),
    "class:pkg.Layer": (["layers.0", "layers.1"], ["mask", "lin0", "act0", "lin1", "act1"]),
    "class:torch.nn.*": (
        ["stem.conv", "stem.norm", "layers.0", "layers.0.lin", "layers.1", "layers.1.lin", "blk.lin", "blk.lin@1"],
        ["conv", "mask", "lin0", "act0", "lin1", "act1", "b0", "b1"],
    ),
    # and, or, not
    "layers.0 and class:Linear": (["layers.0.lin"], ["lin0"]),
    "class:Linear and not layers.0": (["layers.1.lin", "blk.lin", "blk.lin@1"], ["lin1", "b0", "b1"]),
    "class:Linear and not (layers.0 or blk@1)": (["layers.1.lin", "blk.lin"], ["lin1", "b0"]),
    "stem or blk@0 and class:Linear": (["stem", "blk.lin"], ["conv", "b0"]),
    "(stem or blk@0) and class:Linear": (["blk.lin"], ["b0"]),
    "not not stem": (["stem"], ["conv"]),
    # quoting
    '"and"': (["and"], ["odd"]),
    "'odd name'": (["odd name"], ["out"]),
    "odd' 'name": (["odd name"], ["out"]),
    'class:"Odd (class)"': (["and"], ["odd"]),
    '""': ([""], list(NODES)),
    "/Net": ([""], list(NODES)),
}


@pytest.mark.parametrize("pattern", PICKED)
def test_pattern_picks_these_calls_and_nodes(pattern: str) -> None:
    assert (calls(pattern), nodes(pattern)) == PICKED[pattern]


NODES_ONLY = {
    "op:Gemm": ["lin0", "lin1", "b0", "b1"],
    "op:G*": ["lin0", "act1", "lin1", "b0", "b1"],
    "op:com.microsoft::*": ["act1"],
    "op:Gelu or kind:merged": ["act1", "mask"],
    "kind:fused": ["conv"],
    "node:b?": ["b0", "b1"],
    "op:Gemm and not class:Block": ["lin0", "lin1"],
    "not class:Layer and not blk": ["conv", "sum", "odd", "out"],
}


@pytest.mark.parametrize("pattern", NODES_ONLY)
def test_pattern_picks_these_nodes(pattern: str) -> None:
    assert sorted(nodes(pattern)) == sorted(NODES_ONLY[pattern])
    with pytest.raises(SelectorError, match=r"picks nodes|only excludes some"):
        calls(pattern)


def test_contributors_count_unless_only_owners_are_requested() -> None:
    assert nodes("layers.1") == ["mask", "lin1", "act1"]
    assert nodes("layers.1", contributors=False) == ["lin1", "act1"]
    assert nodes("stem.conv") == ["conv"]
    with pytest.raises(SelectorError, match=r"picks no node.*removed the nodes"):
        nodes("stem.conv", contributors=False)
    # Nothing of the layer is in a node that is not the layer's.
    assert "mask" not in nodes("not layers.1")
    assert "mask" in nodes("not layers.1", contributors=False)


ERRORS = {
    "": "ends too early",
    "stem and": "ends too early",
    "stem or or blk": "at character 9",
    "(stem": r"at character 1: this '\(' is not closed",
    "stem)": r"at character 5: this '\)' has no '\('",
    "()": "at character 2",
    "stem blk": "at character 6: expected 'and' or 'or'",
    "(stem blk)": "at character 7",
    "not": "ends too early",
    "colour:red": "at character 1: there is no 'colour:'.*class:",
    "stem and class:": "at character 10: 'class:' has no value",
    "kind:exakt": "at character 1: there is no kind 'exakt'.*exact, fused",
    "stem or 'blk": "at character 9: this quote is not closed",
    'stem or blk"': "at character 12: this quote is not closed",
    "class:Layr": "'class:Layr'; did you mean 'Layer'",
    "layer.0": "did you mean 'layers.0'",
    "op:Gem": "did you mean 'Gemm'",
    "/Net/Layers.0": "did you mean '/Net/Layer",
    "blk@7": "nothing matches 'blk@7'",
    "unused": "'unused' was never called",
    "stem and blk": "nothing matches all of them",
}


@pytest.mark.parametrize("pattern", ERRORS)
def test_error_has_the_problem_and_its_position(pattern: str) -> None:
    for select in (select_calls, select_nodes) if not pattern.startswith(("op:", "kind:")) else (select_nodes,):
        with pytest.raises(SelectorError, match=ERRORS[pattern]):
            select(DOCUMENT, pattern)


def test_unmatched_terms_are_listed_even_if_others_match() -> None:
    selector = parse_selector("class:Layer or class:Laier or not op:Conv or kind:folded")
    assert selector.nodes(DOCUMENT)
    assert selector.unmatched(DOCUMENT) == ("class:Laier", "kind:folded")


def test_limits() -> None:
    assert parse_selector("(" * MAX_DEPTH + "a" + ")" * MAX_DEPTH)
    for deep in ("(" * 5_000 + "a" + ")" * 5_000, "not " * 5_000 + "a", "not (" * 5_000):
        with pytest.raises(SelectorError, match="nested deeper than"):
            parse_selector(deep)
    with pytest.raises(SelectorError, match="too long"):
        parse_selector("a" * (MAX_LENGTH + 1))
    flat = parse_selector(" or ".join(["a"] * 10_000))
    assert isinstance(flat.expression, Or)
    assert len(flat.expression.parts) == 10_000


def test_error_repeats_little_of_a_long_pattern() -> None:
    with pytest.raises(SelectorError) as raised:
        parse_selector("(" + "a" * 50_000)
    assert len(str(raised.value)) < 500


def test_matching_time_is_linear_for_adversarial_patterns() -> None:
    pattern = Pattern([Piece("*a" * 30 + "b")], ".")
    started = time.perf_counter()
    assert not pattern.matches("a" * 3_000)
    assert pattern.matches("a" * 3_000 + "b")
    assert time.perf_counter() - started < 5


def test_wildcard_on_long_names_takes_time_linear_in_their_length() -> None:
    pattern = Pattern([Piece("*a*b")], ".")
    started = time.process_time()
    assert not any(pattern.matches("a" * 20_000 + str(number)) for number in range(50))
    assert time.process_time() - started < 3


# --- any pattern -----------------------------------------------------------------------------------------------

MARKS = ["and", "or", "not", "(", ")", "'", '"', "\\", " ", "*", "**", ".", "/", "@", "[", "]", "!", "-", "?", "\n"]
NAMES = ["class:", "op:", "kind:", ":", "stem", "layers", "0", "1", "Net", "é", "\N{ZERO WIDTH SPACE}"]
syntax = st.lists(st.sampled_from([*MARKS, *NAMES]), max_size=25).map("".join)


@settings(max_examples=400, deadline=None)
@given(text=st.one_of(syntax, st.text(max_size=40)))
def test_any_text_is_a_selector_or_a_selector_error(text: str) -> None:
    for select in (select_calls, select_nodes):
        # Whatever else it raised would fail the test.
        with contextlib.suppress(SelectorError):
            assert select(DOCUMENT, text)


def quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


terms = st.builds(
    lambda field, text: (field, text),
    st.sampled_from(["name", "path", "call", "tag", "class", "op", "node"]),
    st.text(min_size=1, max_size=6),
)
expressions = st.recursive(
    terms,
    lambda inner: st.one_of(
        st.tuples(st.just("and"), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("or"), st.lists(inner, min_size=2, max_size=3)),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=8,
)


def written(expression: Any) -> str:
    head, rest = expression
    if head == "not":
        return f"not ({written(rest)})"
    if head in ("and", "or") and isinstance(rest, list):
        return f" {head} ".join(f"({written(part)})" for part in rest)
    return (quoted if head == "name" else lambda text: f"{head}:{quoted(text)}")(rest)


def shape(expression: Any) -> Any:
    """What was generated, in the form of what is parsed: a double negation is none."""
    head, rest = expression
    if head == "not":
        inner = shape(rest)
        return inner[1] if inner[0] == "not" else ("not", inner)
    return (head, [shape(part) for part in rest]) if head in ("and", "or") else expression


def parsed(expression: Any) -> Any:
    if isinstance(expression, Not):
        return ("not", parsed(expression.part))
    if isinstance(expression, And | Or):
        return (type(expression).__name__.lower(), [parsed(part) for part in expression.parts])
    assert isinstance(expression, Term)
    assert expression.pattern.is_literal
    return (expression.field, expression.pattern.text)


@settings(max_examples=200, deadline=None)
@given(expression=expressions)
def test_parser_inverts_the_text_of_an_expression(expression: Any) -> None:
    assert parsed(parse_selector(written(expression)).expression) == shape(expression)


def regular(pattern: str) -> re.Pattern[str]:
    """The same glob as a regular expression: slow on purpose-made names, and so only good for a test."""
    made, position = "", 0
    while position < len(pattern):
        at_start = position == 0 or pattern[position - 1] == "."
        stars = len(pattern) - position - len(pattern[position:].lstrip("*"))
        if stars >= 2:
            position += stars
            if at_start and pattern[position : position + 1] == ".":
                made += r"(?:.*\.)?"
                position += 1
            else:
                made += ".+" if at_start and position > stars and position == len(pattern) else ".*"
            continue
        made += {"*": "[^.]*", "?": "[^.]"}.get(pattern[position], re.escape(pattern[position]))
        position += 1
    return re.compile(made, re.DOTALL)


@settings(max_examples=500, deadline=None)
@given(pattern=st.text("ab.*?", max_size=9), name=st.text("ab.", max_size=9))
@example(pattern="**.", name="a")
@example(pattern="**.b", name="ab")
def test_glob_matches_the_same_names_as_the_regular_expression(pattern: str, name: str) -> None:
    assert Pattern([Piece(pattern)], ".").matches(name) == bool(regular(pattern).fullmatch(name))
