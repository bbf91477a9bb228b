"""What the record of a model of another package says: whether its file keeps what it claims, and the page of all."""

from __future__ import annotations

import enum
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.pages import table

Record = Mapping[str, Any]
# Models whose plain export takes more CPU time than this are not small.
SMALL_S = 2.0

_INTRODUCTION = """# Models of other packages

Small models of packages that are not transformers, timm or diffusers, exported with `dynamic="auto"` and run at three
other sizes of the axes that a user would want dynamic. `make other-packages` installs the packages, measures and writes
this page. What judges a file shares nothing with `modelexport`: it reads the graph with onnx, runs it with onnxruntime,
and compares outputs by position with the tensors of PyTorch's result.
"""

_NOTES = """
- *free*: no axis of that dimension has a fixed size in the file's inputs. *plain frees*: the same for
  `torch.onnx.export` with these axes named, together or one dimension alone, by the dynamo exporter or with
  `dynamo=False`, where the file is right at every other size. Those that ours does not free are bold.
- *equal*: right at every size. *range said*: wrong or failing only at sizes outside of a range that the result states.
  *fixed and said*: right at every size of the free axes, and a note names each axis that is fixed.
- *seconds* are those of our export, *ratio* its CPU time over that of plain torch's by the same exporter with the axes
  named (one dimension alone where they fail together), each run once in a process of its own.
"""


class Kind(enum.StrEnum):
    """What a record says of a model."""

    EQUAL = "equal"
    RANGE_SAID = "range said"
    FIXED_AND_SAID = "fixed and said"
    FIXED_UNSAID = "FIXED, NOT SAID"
    WRONG = "WRONG"
    NOT_CALLED_RIGHT = "not called right"
    NOT_EXPORTED = "not exported"
    NOT_SHOWN = "NOT SHOWN"


# A file that is called right and is not, or whose claims nobody can know.
BROKEN = (Kind.WRONG, Kind.FIXED_UNSAID, Kind.NOT_SHOWN)


class Verdict(NamedTuple):
    """What a record says of a model, and why."""

    kind: Kind
    why: str = ""


def verdict(record: Record) -> Verdict:
    """Whether the file keeps what it claims."""
    eager, ours = record.get("pytorch", {}), record.get("ours", {})
    refused = [eager["error"]] if "error" in eager else [*filter(None, eager.get("value", []))]
    if refused:
        return Verdict(Kind.NOT_SHOWN, f"PyTorch itself: {refused[0]}")
    if "value" not in ours:
        return Verdict(Kind.NOT_EXPORTED, ours.get("error", record.get("error", "")))
    if ours["value"]["check"] != "equal":
        return Verdict(Kind.NOT_CALLED_RIGHT, ours["value"]["says"])
    if "value" not in record["runs"]:
        return Verdict(Kind.WRONG, record["runs"]["error"])
    found = record["runs"]["value"]
    runs = found["runs"]
    for run in runs:
        if run["outcome"] == "wrong":
            return Verdict(Kind.WRONG, f"{_shown(run['sizes'])}: {run['detail']}")
    if found["free"] and all(run["outcome"] == "refused" for run in runs[1:]):
        return Verdict(Kind.NOT_SHOWN, "PyTorch takes none of the sizes without the fixed axes")
    axes = [axis for fixed in found["fixed"].values() for axis in fixed]
    unsaid = [axis for axis in axes if not is_said(axis, ours["value"]["notes"])]
    if unsaid:
        return Verdict(Kind.FIXED_UNSAID, ", ".join(unsaid))
    if axes:
        return Verdict(Kind.FIXED_AND_SAID, ", ".join(axes))
    outside = [run for run in runs if run["outcome"] == "outside"]
    return Verdict(Kind.RANGE_SAID, _shown(outside[0]["sizes"])) if outside else Verdict(Kind.EQUAL)


def is_said(axis: str, notes: Sequence[str]) -> bool:
    return any("no axis is dynamic" in note or re.search(rf"(?<![\w.]){re.escape(axis)}(?!\d)", note) for note in notes)


def stated_ranges(document: Any) -> dict[str, list[int | None]]:
    """The smallest and largest size, step and offset that a document states, by dimension; None for an open end."""
    ranges = document.size_ranges.items()
    return {name: [limits.min, limits.max, limits.step, limits.offset] for name, limits in ranges}


def is_outside(size: int, limits: Sequence[int | None] | None) -> bool:
    least, most, step, offset = [*(limits or ()), *(None, None, None, None)[len(limits or ()) :]]
    is_between = (least is None or size >= least) and (most is None or size <= most)
    return not is_between or (step is not None and size % step != offset)


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items()) or "the example"


def missed(record: Record) -> list[str]:
    """The dimensions that plain torch frees when they are named, and our file does not."""
    ours = record.get("runs", {}).get("value", {}).get("free", [])
    return [dimension for dimension in _freed_by_plain(record) if dimension not in ours]


def _freed_by_plain(record: Record) -> list[str]:
    plain = record.get("plain", [])
    return list(dict.fromkeys(dimension for export in plain if is_right(export) for dimension in export["named"]))


def is_right(export: Record) -> bool:
    """Whether the file of an export of plain torch is right at every other size that PyTorch takes."""
    runs = export.get("runs", {}).get("value")
    if runs is None or not set(export["named"]) <= set(runs["free"]):
        return False
    outcomes = [run["outcome"] for run in runs["runs"]]
    return "equal" in outcomes[1:] and set(outcomes) <= {"equal", "refused"}


def page(records: Sequence[Record], costs: Sequence[Record], versions: Mapping[str, str]) -> str:
    """The page in Markdown.

    Args:
        records: The results, in the order of the rows.
        costs: The costs of small models.
        versions: The version of each package.
    """
    kinds = Counter(verdict(record).kind for record in records)
    misses = sum(bool(missed(record)) for record in records)
    packages = len({record["package"] for record in records})
    counts = [(kind, kinds[kind]) for kind in Kind if kinds[kind]]
    asked = sum(bool(record.get("ours", {}).get("value", {}).get("asked")) for record in records)
    counts.append(("models for which consent to specialization is asked", asked))
    counts.append(("models with an axis that plain torch frees and `auto` does not", misses))
    head = ("package", "model", "field", "free", "plain frees", "verdict", "why", "check", "seconds", "ratio")
    rows = [_row(record, versions) for record in records]
    parts = [_INTRODUCTION, *_setup(records), f"{len(records)} models of {packages} packages:\n"]
    parts += [table(("outcome", "models"), counts), _NOTES, table(head, rows)]
    if costs:
        parts += ["", *_costs(costs)]
    return "\n".join(parts).rstrip() + "\n"


def _setup(records: Sequence[Record]) -> list[str]:
    setups = [record["setup"] for record in records if "setup" in record]
    if not setups:
        return []
    versions = ", ".join(f"{name} {version}" for name, version in setups[0]["versions"].items())
    commits = ", ".join(dict.fromkeys(setup["commit"] for setup in setups))
    return [f"Measured until {max(setup['date'] for setup in setups)} at {commits} with {versions}.\n"]


def _row(record: Record, versions: Mapping[str, str]) -> tuple[str, ...]:
    found, ours = verdict(record), record.get("ours", {}).get("value", {})
    free = record.get("runs", {}).get("value", {}).get("free", [])
    plain = _freed_by_plain(record)
    shown = [f"**{name}**" if name not in free else name for name in plain]
    exports = [entry["export"] for entry in record.get("plain", []) if entry["exporter"] == ours.get("exporter")]
    costs = [export["value"]["cpu"] for export in exports if "value" in export]
    ratio = f"{ours['cpu'] / costs[0]:.2f}" if ours and costs and costs[0] > 0 else ""
    return (
        f"{record['package']} {versions.get(record['package'], '')}".strip(),
        record["name"].partition(":")[2],
        record.get("field", ""),
        ", ".join(free),
        ", ".join(shown),
        found.kind,
        _cell(found.why),
        _cell(("asks for consent; with it: " if ours.get("asked") else "") + ours.get("says", "")),
        f"{ours['seconds']:.1f}" if ours else "",
        ratio,
    )


def _cell(text: str) -> str:
    flat = " ".join(text.split())
    return re.sub(r"([|<>*_])", r"\\\1", flat[:200] + ("…" if len(flat) > 200 else ""))


def _costs(costs: Sequence[Record]) -> list[str]:
    rows, checked, unchecked, sizes = [], [], [], []
    for record in costs:
        found = record.get("value")
        if found is None:
            rows.append((record["name"], record["error"][:80], "", "", "", ""))
            continue
        if found["plain"] < SMALL_S:
            checked.append(found["checked"])
            unchecked.append(found["unchecked"])
            sizes.append(found["dynamic"])
        digits = [f"{found[key]:.3f}" if found[key] is not None else "" for key in ("checked", "unchecked", "dynamic")]
        rows.append((record["name"], f"{found['plain']:.2f}", *digits, found["rounds"]))
    median = [f"{statistics.median(filter(None, of)):.3f}" if any(of) else "" for of in (checked, unchecked, sizes)]
    rows.append((f"median of those below {SMALL_S:g} s", "", *median, ""))
    head = ("model", "plain (CPU s)", "ours / plain", "without the check", "ours / plain, axes named", "rounds")
    said = "CPU time of all processes, warm, alternating in one process; medians of the rounds."
    return ["## Cost on small models\n", f"{said}\n", table(head, rows)]
