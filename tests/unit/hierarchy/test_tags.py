"""Tags: which modules show, what a segment says, and that no two visible calls share one."""

from __future__ import annotations

import re
from collections import Counter
from urllib.parse import unquote

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tests.support.module_trees import made, tags_of, tree_of
from torch import nn

from modelexport.capture.module_tree import read_module_tree
from modelexport.hierarchy.calls import ROOT_CALL, CallId, CallTree, ModuleCall
from modelexport.hierarchy.modules import ROOT_PATH, ModuleTree, ancestor_paths, contains
from modelexport.hierarchy.tags import TagScheme, TagView

# A tree is cheap and a shared machine is slow: no deadline for the single example.
properties = settings(max_examples=150, deadline=None)


OWN_CLASSES = (
    made("Block"),
    made("Block", module="elsewhere"),  # the same name from another place
    made("Block.0"),  # named like a segment of the others
    made("Block/Block"),
    made("Block@1"),
    made("%2F"),
    made("块"),
)
TORCH_CLASSES = (nn.ReLU, nn.Identity, lambda: nn.LayerNorm(1), lambda: nn.Embedding(1, 1))
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, made("Pipeline", nn.Sequential))

ODD_NAMES = ("a@1", "a@0", "a/b", "/", "%2F", "%", "@", "0", "1", "-1", "½", "é", "名", " ", "\n", "Block", "a", "b")
child_names = st.one_of(
    st.sampled_from(ODD_NAMES),
    st.text(st.characters(exclude_characters=".", exclude_categories=["Cs"]), min_size=1, max_size=4),
)


@st.composite
def models(draw: st.DrawFn) -> nn.Module:
    """Real modules: repeated classes, containers in containers, odd names, one module under several names."""
    creators = st.one_of(st.sampled_from(OWN_CLASSES), st.sampled_from(CONTAINERS), st.sampled_from(TORCH_CLASSES))
    root = draw(st.sampled_from([*OWN_CLASSES, *CONTAINERS]))()
    every = [root]
    for _ in range(draw(st.integers(0, 12))):
        parent = draw(st.sampled_from([m for m in every if type(m) in (*OWN_CLASSES, *CONTAINERS)]))
        if draw(st.integers(0, 4)) == 0:
            child = draw(st.sampled_from(every))
            if parent in set(child.modules()):
                continue  # a module that contains itself: torch cannot walk it either
        else:
            child = draw(creators)()
            every.append(child)
        if isinstance(parent, nn.ModuleList | nn.Sequential):
            parent.append(child)
        else:
            name = draw(child_names)
            if not hasattr(parent, name):
                parent.add_module(name, child)
    return root


@st.composite
def call_trees(draw: st.DrawFn, tree: ModuleTree, *, recursive: bool = False) -> CallTree:
    """Calls as programs make them: repeated, nested, by the module's own parent or by any other module.

    Unless `recursive`, no module runs inside itself or starts one that it is a part of.
    """
    paths = [module.path for module in tree]
    counts = Counter({ROOT_PATH: 1})
    calls = {ROOT_CALL: ModuleCall(ROOT_PATH)}
    running = [ROOT_CALL]
    for path in draw(st.lists(st.sampled_from(paths), max_size=20)):
        for _ in range(draw(st.integers(0, 2))):
            if len(running) > 1:
                running.pop()
        if not recursive and any(contains(path, caller.path) for caller in running):
            continue
        call = CallId(path, counts[path])
        counts[path] += 1
        calls[call] = ModuleCall(path, call.index, running[-1])
        running.append(call)
    return CallTree(calls)


views = st.builds(
    TagView.create,
    st.sampled_from([None, "all", "none", ("ReLU", "ModuleList"), ()]),
    st.sampled_from([(), ("torch.nn.*Dict",), ("*.Identity", "*Sequential")]),
    st.sampled_from([(), ("elsewhere.*",), ("*.Block",), ("*Pipeline", "torch.nn.*")]),
)


def nearest_visible(scheme: TagScheme, path: str) -> str:
    return next(above for above in ancestor_paths(path) if scheme.is_visible(above))


def parts(segment: str) -> list[str]:
    return [unquote(part) for part in segment.split(".")]


# --- properties of any tree and any calls ----------------------------------------------------------------------


@properties
@given(st.data())
def test_no_two_visible_calls_share_a_tag(data: st.DataObject) -> None:
    tree = read_module_tree(data.draw(models()))
    calls = data.draw(call_trees(tree, recursive=True))
    scheme = TagScheme(tree, data.draw(views))
    tags = Counter(scheme.tag(call.id, calls) for call in calls if scheme.is_visible(call.path))
    assert not [tag for tag, count in tags.items() if count > 1]


@properties
@given(models(), views)
def test_no_two_visible_modules_share_a_tag(model: nn.Module, view: TagView) -> None:
    tree = read_module_tree(model)
    scheme = TagScheme(tree, view)
    tags = Counter(scheme.module_tag(module.path) for module in tree if scheme.is_visible(module.path))
    assert not [tag for tag, count in tags.items() if count > 1]


@properties
@given(st.data())
def test_tag_is_the_same_for_the_same_tree_and_call_in_whatever_order_the_calls_are_listed(data: st.DataObject) -> None:
    model = data.draw(models())
    calls = data.draw(call_trees(read_module_tree(model), recursive=True))
    shuffled = CallTree({call.id: call for call in data.draw(st.permutations(list(calls)))})
    view = data.draw(views)
    first, second = (TagScheme(read_module_tree(model), view) for _ in range(2))
    assert [first.tag(call.id, calls) for call in calls] == [second.tag(call.id, shuffled) for call in calls]


@properties
@given(st.data())
def test_tag_starts_with_the_tag_of_every_visible_enclosing_module_that_is_running(data: st.DataObject) -> None:
    tree = read_module_tree(data.draw(models()))
    calls = data.draw(call_trees(tree))
    scheme = TagScheme(tree, data.draw(views))
    for call in calls:
        tag = scheme.tag(call.id, calls)
        for caller in calls.chain(call.id)[1:]:
            if contains(caller.path, call.path) and scheme.is_visible(caller.path):
                outer = scheme.tag(caller, calls)
                is_hidden_below = not scheme.is_visible(call.path) and nearest_visible(scheme, call.path) == caller.path
                assert tag == outer if is_hidden_below else tag.startswith(f"{outer}/")


@properties
@given(st.data())
def test_tag_without_its_indices_is_that_of_the_module_with_one_segment_for_each_visible_one(
    data: st.DataObject,
) -> None:
    tree = read_module_tree(data.draw(models()))
    calls = data.draw(call_trees(tree, recursive=True))
    scheme = TagScheme(tree, data.draw(views))
    for call in calls:
        tag = scheme.tag(call.id, calls)
        assert re.sub(r"@\d+(?=/|\Z)", "", tag) == scheme.module_tag(call.path)
        visible = [path for path in (call.path, *ancestor_paths(call.path)) if scheme.is_visible(path)]
        classes = [parts(segment)[0] for segment in scheme.module_tag(call.path).split("/")[1:]]
        assert classes == [tree[path].class_name for path in reversed(visible)]


@properties
@given(st.data())
def test_own_segment_carries_the_index_of_the_call_and_others_that_of_the_call_running(data: st.DataObject) -> None:
    tree = read_module_tree(data.draw(models()))
    calls = data.draw(call_trees(tree))
    scheme = TagScheme(tree, data.draw(views))
    for call in calls:
        running = {caller.path: caller.index for caller in calls.chain(call.id)}
        visible = [path for path in (call.path, *ancestor_paths(call.path)) if scheme.is_visible(path)]
        found = [re.search(r"@(\d+)\Z", part) for part in scheme.tag(call.id, calls).split("/")[1:]]
        assert [int(i[1]) if i else 0 for i in found] == [running.get(path, 0) for path in reversed(visible)]


@properties
@given(models(), views)
def test_hidden_module_has_the_tag_of_its_nearest_visible_ancestor(model: nn.Module, view: TagView) -> None:
    tree = read_module_tree(model)
    scheme = TagScheme(tree, view)
    for module in tree:
        assert scheme.is_visible(module.path) == view.shows(module)
        if not view.shows(module):
            assert scheme.module_tag(module.path) == scheme.module_tag(nearest_visible(scheme, module.path))


@properties
@given(models(), views)
def test_segment_is_the_class_and_the_shortest_unique_suffix(model: nn.Module, view: TagView) -> None:
    tree = read_module_tree(model)
    scheme = TagScheme(tree, view)
    for module in tree:
        if module.path == ROOT_PATH or not scheme.is_visible(module.path):
            continue
        above = nearest_visible(scheme, module.path)
        prefix = f"{above}." if above else ""
        siblings = [
            other.path.removeprefix(prefix).split(".")
            for other in tree
            if other.path not in (ROOT_PATH, module.path)
            and other.class_name == module.class_name
            and scheme.is_visible(other.path)
            and nearest_visible(scheme, other.path) == above
        ]
        way = module.path.removeprefix(prefix).split(".")
        cls, *suffix = parts(scheme.module_tag(module.path).rpartition("/")[2])
        assert cls == module.class_name
        assert suffix == way[len(way) - len(suffix) :]
        if not siblings:
            assert len(suffix) == (1 if way[-1].isdigit() else 0)
            continue
        assert suffix
        told_apart = all(sibling[-len(suffix) :] != suffix for sibling in siblings)
        assert told_apart or suffix == way
        shorter = suffix[1:]
        assert not shorter or any(sibling[-len(shorter) :] == shorter for sibling in siblings)


# --- the examples of the specification -------------------------------------------------------------------------


def test_tag_is_the_class_path_with_the_index_of_the_layer() -> None:
    layers = [tree_of("BertLayer", attention=tree_of("BertAttention", self=nn.Linear(1, 1))) for _ in range(2)]
    tags = tags_of(tree_of("BertModel", encoder=tree_of("BertEncoder", layer=nn.ModuleList(layers))))
    assert tags["encoder.layer.0.attention"] == "/BertModel/BertEncoder/BertLayer.0/BertAttention"
    assert tags["encoder.layer.1.attention"] == "/BertModel/BertEncoder/BertLayer.1/BertAttention"
    assert tags["encoder.layer.0.attention.self"] == tags["encoder.layer.0.attention"]  # nn.Linear does not show
    assert tags["encoder.layer"] == "/BertModel/BertEncoder"
    assert tags[""] == "/BertModel"


def test_names_show_where_siblings_have_the_same_class() -> None:
    tags = tags_of(tree_of("Attention", q_norm=made("RMSNorm")(), k_norm=made("RMSNorm")(), rope=made("Rotary")()))
    assert tags["q_norm"] == "/Attention/RMSNorm.q_norm"
    assert tags["k_norm"] == "/Attention/RMSNorm.k_norm"
    assert tags["rope"] == "/Attention/Rotary"


def test_index_shows_even_where_there_is_one_layer() -> None:
    assert tags_of(tree_of("Encoder", layer=nn.ModuleList([made("BertLayer")()])))["layer.0"] == "/Encoder/BertLayer.0"


def test_longer_suffix_shows_where_the_last_name_is_shared() -> None:
    model = tree_of("Net", down=nn.ModuleList([made("Block")()]), up=nn.ModuleList([made("Block")()]))
    assert tags_of(model) == {
        "": "/Net",
        "down": "/Net",
        "down.0": "/Net/Block.down.0",
        "up": "/Net",
        "up.0": "/Net/Block.up.0",
    }


def test_repeated_call_shows_its_index_and_so_does_all_that_runs_inside_it() -> None:
    layer = tree_of("AlbertLayer", attention=made("AlbertAttention")())
    tree = read_module_tree(tree_of("AlbertModel", layers=nn.ModuleList([layer])))
    calls = {ROOT_CALL: ModuleCall("")}
    for index in range(3):
        outer, inner = CallId("layers.0", index), CallId("layers.0.attention", index)
        calls[outer] = ModuleCall(*_fields(outer), parent=ROOT_CALL)
        calls[inner] = ModuleCall(*_fields(inner), parent=outer)
    scheme = TagScheme(tree, TagView())
    tags = [scheme.tag(call, CallTree(calls)) for call in calls]
    assert tags[1] == "/AlbertModel/AlbertLayer.0"
    assert tags[5] == "/AlbertModel/AlbertLayer.0@2"
    assert tags[6] == "/AlbertModel/AlbertLayer.0@2/AlbertAttention@2"


def test_shared_module_called_by_another_parent_keeps_its_place_without_an_index_for_who_did_not_run() -> None:
    shared = made("Shared")()
    owner, user = tree_of("Owner", shared=shared), tree_of("User", borrowed=shared)
    tree = read_module_tree(tree_of("Net", owner=owner, user=user))
    assert tree["owner.shared"].aliases == ("user.borrowed",)
    steps = [CallId("owner"), CallId("owner.shared"), CallId("owner", 1), CallId("owner.shared", 1), CallId("user")]
    parents = [ROOT_CALL, steps[0], ROOT_CALL, steps[2], ROOT_CALL]
    calls = {ROOT_CALL: ModuleCall("")}
    calls |= {call: ModuleCall(*_fields(call), parent=by) for call, by in zip(steps, parents, strict=True)}
    third = CallId("owner.shared", 2)
    calls[third] = ModuleCall(*_fields(third), parent=steps[4])
    scheme = TagScheme(tree, TagView())
    assert scheme.tag(steps[3], CallTree(calls)) == "/Net/Owner@1/Shared@1"
    assert scheme.tag(third, CallTree(calls)) == "/Net/Owner/Shared@2"


def _fields(call: CallId) -> tuple[str, int]:
    return call.path, call.index


def test_names_that_look_like_parts_of_a_tag_cannot_imitate_one() -> None:
    odd = nn.ModuleDict({name: made("Block")() for name in ("a", "a@1", "a/Block", "%2F", "0")})
    tags = tags_of(tree_of("Net", odd=odd))
    assert tags["odd.a@1"] == "/Net/Block.a%401"
    assert tags["odd.a/Block"] == "/Net/Block.a%2FBlock"
    assert tags["odd.%2F"] == "/Net/Block.%252F"
    assert tags["odd.0"] == "/Net/Block.0"
    assert tags_of(made("Net.Block/1@2")())[""] == "/Net%2EBlock%2F1%402"


# --- how calls are written -------------------------------------------------------------------------------------

paths = st.one_of(
    st.text(),
    st.text("a@01.٣\n"),
    st.builds("{}@{}".format, st.text(max_size=3), st.integers(0)),  # ends like an index
)


@properties
@given(paths, st.integers(0, 10**18 - 1))
def test_what_is_written_of_a_call_reads_back_as_that_call(path: str, index: int) -> None:
    call = CallId(path, index)
    assert CallId.parse(str(call)) == call


@properties
@given(st.sets(st.builds(CallId, paths, st.integers(0, 3))))
def test_two_calls_are_never_written_alike(calls: set[CallId]) -> None:
    assert len({str(call) for call in calls}) == len(calls)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (CallId("encoder.layer.0"), "encoder.layer.0"),
        (CallId("encoder.layer.0", 2), "encoder.layer.0@2"),
        (CallId(""), ""),
        (CallId("", 1), "@1"),
        (CallId("a@1"), "a@1@0"),
        (CallId("a@1", 1), "a@1@1"),
        (CallId("a@b"), "a@b"),
    ],
)
def test_index_is_written_from_the_second_call_on_and_where_the_path_ends_like_one(call: CallId, text: str) -> None:
    assert str(call) == text
    assert CallId.parse(text) == call
