"""Parse module scopes that exporters leave in a file: torch's dynamo metadata, TorchScript's node names, our tags.

Nothing is evaluated. A text that does not have the exporter's format is ignored.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Mapping, Sequence
from urllib.parse import unquote

from modelexport.hierarchy import ROOT_PATH, CallId, ancestor_paths

NAME_SCOPES_KEY = "pkg.torch.onnx.name_scopes"
CLASS_HIERARCHY_KEY = "pkg.torch.onnx.class_hierarchy"

# No exporter writes longer texts or deeper scopes.
_MAX_TEXT = 100_000
_MAX_DEPTH = 200
# Matching a tag takes time in proportion to the square of the depth.
_MAX_ALIGNED = 64
_QUOTED = re.compile(r"""'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)\"""")
_LIST = re.compile(rf"""\[\s*(?:(?:{_QUOTED.pattern})\s*(?:,\s*(?:{_QUOTED.pattern})\s*)*)?\]""")
_REPEATED = re.compile(r"(.+)_(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """The module calls around a node, outermost first, with the qualified class of each where it is known."""

    calls: tuple[CallId, ...]
    classes: tuple[str | None, ...]


def read_torch_scope(properties: Mapping[str, str]) -> Scope | None:
    """The scope in the metadata of torch's dynamo exporter; None where it names no module.

    The exporter writes a placeholder where no module is known; a real scope begins with the root.
    """
    names = _strings(properties.get(NAME_SCOPES_KEY))
    classes = _strings(properties.get(CLASS_HIERARCHY_KEY))
    # The last entry is the operator.
    modules = names[:-1]
    if not modules or modules[0] != ROOT_PATH or len(modules) > _MAX_DEPTH:
        return None
    if any(name.count(".") > _MAX_DEPTH for name in modules):
        return None
    known: Sequence[str | None] = classes[: len(modules)] if len(classes) == len(names) else [None] * len(modules)
    return Scope(tuple(CallId(name) for name in modules), tuple(known))


def _strings(text: str | None) -> list[str]:
    """A list of strings as Python writes it."""
    if not isinstance(text, str) or len(text) > _MAX_TEXT or not _LIST.fullmatch(text):
        return []
    return [re.sub(r"\\(.)", r"\1", first or second) for first, second in _QUOTED.findall(text)]


def read_name_scope(name: str, operation: str, known: Container[str]) -> Scope | None:
    """The scope in a node name of the TorchScript exporter; None for a name of another form.

    Such a name is ``/encoder/layer.0/attention/MatMul_1``: one part for each module call, the attribute path from the
    last one, and the operator. The second call of ``l`` and a module named ``l_1`` have the same name; `known` decides
    between the two.

    Args:
        name: The node's name.
        operation: Its operator.
        known: The paths of modules that are known to exist, for instance from the names of weights.
    """
    if not name.startswith("/") or len(name) > _MAX_TEXT:
        return None
    *parts, last = name[1:].split("/")
    if len(parts) + name.count(".") > _MAX_DEPTH or not all(parts):
        return None
    counted = _REPEATED.fullmatch(last)
    if operation not in (last, counted[1] if counted else None):
        return None
    calls = [CallId(ROOT_PATH)]
    before = ""
    for part in parts:
        above = calls[-1].path
        # The child of a Sequential repeats its name: `f/f.0`.
        local = part.removeprefix(f"{before}.") if before else part
        before = part
        path, index = _join(above, local), 0
        repeated = _REPEATED.fullmatch(local)
        if repeated and path not in known and _join(above, repeated[1]) in known:
            path, index, before = _join(above, repeated[1]), int(repeated[2][:9]), repeated[1]
        calls.append(CallId(path, index))
    return Scope(tuple(calls), (None,) * len(calls))


def _join(above: str, local: str) -> str:
    return f"{above}.{local}" if above else local


@dataclasses.dataclass(frozen=True, slots=True)
class TagStep:
    """A visible module that encloses a call: its path, the index of its call, its class, and the tag up to it."""

    path: str
    index: int
    class_name: str
    tag: str


def align_tag(path: str, tag: str, lengths: Mapping[str, int], classes: Mapping[str, str]) -> list[TagStep]:
    """Match the segments of a tag with the modules that enclose `path`.

    A tag omits hidden modules, and a segment often shows the class only; where several matches are possible, a segment
    gets the outermost module.

    Args:
        path: The module path of the call that has the tag.
        tag: The tag.
        lengths: The number of segments in the tags of other paths, where known.
        classes: The class names of modules, where known.

    Returns:
        The visible modules, the root first; the root alone where the tag does not fit the path.
    """
    segments = [_Segment.parse(text) for text in tag.split("/")[1:]]
    prefixes = [*reversed(list(ancestor_paths(path))), path] if path else [ROOT_PATH]
    root = TagStep(ROOT_PATH, segments[0].index, segments[0].class_name, f"/{segments[0].text}") if segments else None
    if root is None or len(prefixes) > _MAX_ALIGNED or len(tag) > _MAX_TEXT:
        return []
    # For each prefix, how many segments may be matched up to it: computed from the innermost outwards.
    possible: list[set[int]] = [set() for _ in prefixes]
    possible[-1] = {len(segments)}
    for position in range(len(prefixes) - 2, -1, -1):
        inner = prefixes[position + 1]
        ends = possible[position + 1]
        fitting = {end - 1 for end in ends if end > 1 and segments[end - 1].fits(inner, classes)}
        fitting |= {end for end in ends if end >= 1}
        expected = lengths.get(prefixes[position])
        possible[position] = fitting if expected is None else fitting & {expected}
    steps, used = [root], 1
    if used not in possible[0]:
        return steps
    for position, prefix in enumerate(prefixes[1:], start=1):
        if used < len(segments) and used + 1 in possible[position] and segments[used].fits(prefix, classes):
            segment = segments[used]
            steps.append(TagStep(prefix, segment.index, segment.class_name, f"{steps[-1].tag}/{segment.text}"))
            used += 1
    return steps if used == len(segments) else [root]


@dataclasses.dataclass(frozen=True, slots=True)
class _Segment:
    """One segment of a tag: ``BertLayer.0@2``."""

    text: str
    class_name: str
    suffix: tuple[str, ...]
    index: int

    @classmethod
    def parse(cls, text: str) -> _Segment:
        named, at, index = text.rpartition("@")
        if not at or not index.isdigit() or len(index) > 9:
            named, index = text, "0"
        class_name, *suffix = named.split(".")
        return cls(text, unquote(class_name), tuple(map(unquote, suffix)), int(index))

    def fits(self, path: str, classes: Mapping[str, str]) -> bool:
        """Whether the segment can be of this module."""
        names = path.split(".")
        if self.suffix and tuple(names[-len(self.suffix) :]) != self.suffix:
            return False
        # A trailing number always shows.
        if not self.suffix and names[-1].isdigit():
            return False
        return classes.get(path, self.class_name) == self.class_name
