"""The page of the sweep's proof: files on other values and at other sizes, by a judge that is not the package."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.pages import table
from benchmarks.sweep_causes import cause, works

Record = Mapping[str, Any]

# The outcomes of a run that say nothing against the file, and the causes that are not its own.
_SAYS_NOTHING = ("equal", "refused", "not comparable")
_NOT_THE_FILES = ("nondeterminism", "numerics")

_INTRODUCTION = """# The proof of the sweep's files

A seeded sample of [the sweep](sweep.md): each model is exported by `modelexport.export_model`, and the file is judged
by code that shares no judgement with the package (`benchmarks/sweep_judge.py`): it runs the file with onnxruntime and
compares its outputs by position, count, type and shape with everything that PyTorch returns (relative tolerance 1e-3,
absolute 1e-4 of the largest value). `make sweep-proof` runs it, resumes where it stopped and writes this page.
"""

_VALUES = """
## Other values

Exported with `probes=2`. The judge runs the file on the example and on two probes of its own: integers are permuted,
floats drawn anew with the same mean and deviation; a mask of ones gets zeros at its end in the second. Where PyTorch
does not take these, floats alone or integers alone are changed. The cause of a difference is the first of:

- *nondeterminism*: PyTorch differs as much from itself with another random state;
- *numerics*: the file is right without onnxruntime's optimizations, or PyTorch's own results leave the tolerance if its
  weights and inputs change by 1e-6;
- *wrong on the example*: the file is wrong on the inputs that it was exported with;
- *data-dependent branch*: PyTorch runs other operators on the probe than on the example;
- *baked value*: it runs the same operators, so the file has a constant for what depends on the inputs.
"""

_SIZES = """
## Other sizes

Exported with `dynamic="auto"`. The judge reads the symbolic sizes of the file's inputs, and changes all of them
together and each alone, until PyTorch has taken three other sizes of each (at most {symbols} of a file alone).

- *equal*: right at every size that PyTorch takes. *range said*: wrong only at sizes outside of a range that the result
  states. *fixed and said*: right, and a note names each axis that PyTorch takes with other sizes and the file does not.
- *fixed, not said*: PyTorch takes a larger and a smaller size on an axis (alone, or together with the others of its
  number and size), the file does not, and no note names the axis.
- *rounding*: what differs changes in PyTorch itself with the random state or the last bits.
- *WRONG*: called right by the package, and wrong or failing at a size that it claims.
"""


class SizeKind(enum.StrEnum):
    """What a record says of a file with dynamic axes."""

    EQUAL = "equal"
    RANGE_SAID = "range said"
    FIXED_AND_SAID = "fixed and said"
    FIXED_UNSAID = "fixed, not said"
    NO_AXIS = "no axis to free"
    ROUNDING = "rounding"
    NOT_CALLED_RIGHT = "not called right"
    NOT_EXPORTED = "not exported"
    NOT_SHOWN = "not shown"
    WRONG = "WRONG"


class Verdict(NamedTuple):
    """What a record says, and why."""

    kind: SizeKind
    why: str = ""


def proof_page(
    sample: Sequence[str], records: Mapping[str, Record], swept: Mapping[str, Record], seed: int, symbols: int = 6
) -> str:
    """The page in Markdown.

    Args:
        sample: The names of the models of the sample.
        records: The results by `sweep_records.key_of`.
        swept: The results of the earlier sweep, by name.
        seed: The seed of the sample.
        symbols: How many sizes of a file are changed alone.
    """
    names = [name for name in sample if works(swept.get(name, {"forward": {}}), "forward")]
    values = [records[f"{name} probes"] for name in names if f"{name} probes" in records]
    sizes = [records[f"{name} sizes"] for name in names if f"{name} sizes" in records]
    without = len(sample) - len(names)
    told = f"Sample: {len(sample)} models by seed {seed}; {without} run no forward pass in the sweep and are left out."
    parts = [_INTRODUCTION, told]
    if values:
        parts += [_VALUES, _setups(values, len(names)), *_of_values(values, swept)]
    if sizes:
        parts += [_SIZES.format(symbols=symbols), _setups(sizes, len(names)), *_of_sizes(sizes)]
    return "\n".join(parts).rstrip() + "\n"


def _setups(records: Sequence[Record], of: int) -> str:
    setups = [record["setup"] for record in records]
    commits = Counter(setup["commit"] for setup in setups)
    shown = ", ".join(f"{commit} ({count} models)" for commit, count in commits.most_common())
    versions = " or ".join(dict.fromkeys(", ".join(f"{n} {v}" for n, v in s["versions"].items()) for s in setups))
    date = max(setup["date"] for setup in setups)
    return f"{len(records)} of {of} models measured until {date} with {versions}. Commits: {shown}.\n"


# --- other values ----------------------------------------------------------------------------------------------


def _of_values(records: Sequence[Record], swept: Mapping[str, Record]) -> list[str]:
    running = [record for record in records if works(record, "forward")]
    sources = [(source, [r for r in running if r["source"] == source]) for source in _sources(running)]
    columns = [*sources, ("all", running)]

    def row(title: str, good: Callable[[Record], bool], of: Callable[[Record], bool]) -> list[str]:
        return [title, *(_share(sum(map(good, filter(of, found))), sum(map(of, found))) for _, found in columns)]

    rows = [
        row("exported, with consent where it is asked for", lambda r: works(r, "ours"), _any),
        row("**equal on the example, by the package**", lambda r: _outcome_of_example(r) == "equal", _any),
        row(
            "the same, without nondeterministic models",
            lambda r: _outcome_of_example(r) == "equal",
            lambda r: outcome(r) != "nondeterministic",
        ),
        row("equal on the example, by the judge", lambda r: _all_equal(_runs(r)[:1]), _any),
        row("**equal on the package's own probes, of those that it compared**", _is_probed_equal, _is_probed),
        row("**equal on the judge's probes, of those that it compared**", _judged_equal, _is_judged),
        row("the same, but for nondeterminism and numerics", lambda r: not wrong_runs(r), _is_judged),
    ]
    found = [table(("", *(name for name, _ in columns)), rows)]
    differences = [(record, run) for record in records for run in _runs(record) if run["outcome"] not in _SAYS_NOTHING]
    causes = Counter(_cause(record, run) for record, run in differences)
    found += _section(
        "Differences that the judge finds",
        [
            f"- `{r['name']}` ({_how(r)}), {run['inputs']}: **{_cause(r, run)}**: {run['detail']}; "
            f"the package: {_short(_says(r))}"
            for r, run in differences
        ],
        f"{sum(causes.values())} runs: {', '.join(f'{count} {name}' for name, count in causes.most_common())}.",
    )
    found += _section(
        "Where the judge and the package disagree",
        [f"- `{r['name']}` ({_how(r)}): {_disagreement(r)}" for r in records if _disagreement(r)],
    )
    found += _section(
        "Equal in the earlier sweep, and not by the check now",
        [
            f"- `{r['name']}` ({_how(r)}): {_short(_says(r) or r['ours']['error'])}"
            for r in running
            if _was_equal(swept.get(r["name"])) and outcome(r) != "equal"
        ],
    )
    found += _section(
        "Not equal in the earlier sweep, and equal now",
        [
            f"- `{r['name']}` ({_how(r)})"
            for r in running
            if works(swept.get(r["name"], {}), "forward")
            and not _was_equal(swept.get(r["name"]))
            and outcome(r) == "equal"
        ],
    )
    found += _section(
        "Not compared by the judge",
        [
            f"- `{r['name']}`, {run['inputs']}: {run['outcome']}: {_short(run['detail'])}"
            for r in records
            for run in _runs(r)
            if run["outcome"] in ("refused", "not comparable")
        ]
        + [f"- `{r['name']}`: {cause(r['probes']['error'])}" for r in records if "error" in r.get("probes", {})],
    )
    return [*found, *_not_exported(records)]


def _not_exported(records: Sequence[Record]) -> list[str]:
    failed = [
        f"- `{r['name']}`: {step}: {cause(r[step]['error'])}"
        for r in records
        for step in ("built", "forward", "ours")
        if "error" in r.get(step, {})
    ]
    escaped = [r for r in records if r.get("ours", {}).get("error", "").startswith("EscapedError")]
    told = f"Exceptions that are not the package's own: {len(escaped)}."
    return _section("Not exported", failed, told) if failed else ["", told]


def outcome(record: Record) -> str | None:
    """The outcome of the package's check; None without a file."""
    return record["ours"]["value"]["check"]["outcome"] if works(record, "ours") else None


def _outcome_of_example(record: Record) -> str | None:
    """The outcome of the package's check on the example: what is wrong with a probe was equal on it."""
    return "equal" if _is_wrong_with_probe(record) else outcome(record)


def _is_wrong_with_probe(record: Record) -> bool:
    return works(record, "ours") and record["ours"]["value"]["check"].get("reason", "").startswith("with probe ")


def _is_probed(record: Record) -> bool:
    return _is_wrong_with_probe(record) or _is_probed_equal(record)


def _is_probed_equal(record: Record) -> bool:
    check = record["ours"]["value"]["check"] if works(record, "ours") else {}
    return check.get("outcome") == "equal" and any(name.startswith("probe ") for name in check.get("compared", ()))


def _runs(record: Record) -> list[Record]:
    return record["probes"]["value"]["runs"] if works(record, "probes") else []


def _all_equal(runs: Sequence[Record]) -> bool:
    return bool(runs) and all(run["outcome"] == "equal" for run in runs)


def _compared(record: Record) -> list[Record]:
    return [run for run in _runs(record)[1:] if run["outcome"] not in ("refused", "not comparable")]


def _is_judged(record: Record) -> bool:
    return bool(_compared(record))


def _judged_equal(record: Record) -> bool:
    return _all_equal(_compared(record))


def wrong_runs(record: Record) -> list[Record]:
    """The runs in which the file is wrong by a fault of its own."""
    return [r for r in _runs(record) if r["outcome"] not in _SAYS_NOTHING and r["cause"] not in _NOT_THE_FILES]


def _cause(record: Record, run: Record) -> str:
    """Where a difference comes from; what is wrong on the example already does not come from other values."""
    is_own = run["cause"] not in _NOT_THE_FILES
    return "wrong on the example" if is_own and not _all_equal(_runs(record)[:1]) else str(run["cause"])


def _disagreement(record: Record) -> str:
    """How the judge and the package differ about a file; "" if they do not."""
    if not works(record, "ours") or not works(record, "probes"):
        return ""
    different = [run for run in _runs(record) if run["outcome"] in ("different", "failed")]
    if outcome(record) == "equal" and different:
        shown = "; ".join(f"{run['inputs']}: {_cause(record, run)}: {run['detail']}" for run in different)
        return f"called {_short(_says(record))}; the judge: {shown}"
    is_wrong = outcome(record) in ("different", "run_failed", "load_failed", "equal_unoptimized", "unstable")
    return f"called {_short(_says(record))}; the judge: equal" if is_wrong and _all_equal(_runs(record)) else ""


def _was_equal(record: Record | None) -> bool:
    return record is not None and works(record, "ours") and record["ours"]["value"]["check"]["outcome"] == "equal"


# --- other sizes -----------------------------------------------------------------------------------------------


def _of_sizes(records: Sequence[Record]) -> list[str]:
    running = [record for record in records if works(record, "forward")]
    verdicts = [(record, size_verdict(record)) for record in running]
    sources = _sources(running)
    rows = []
    for kind in SizeKind:
        counts = [sum(r["source"] == source and v.kind is kind for r, v in verdicts) for source in sources]
        if sum(counts):
            rows.append((kind, *counts, sum(counts)))
    rows.append(("all", *(sum(r["source"] == source for r in running) for source in sources), len(running)))
    found = [table(("", *sources, "all"), rows)]
    with_axes = [r for r in running if works(r, "sizes") and _symbolic(r)]
    runs = [run for r in with_axes for run in r["sizes"]["value"]["runs"][1:]]
    found.append(f"\n{len(with_axes)} files have dynamic axes; {len(runs)} runs at other sizes.")
    for kind in SizeKind:
        if kind not in (SizeKind.EQUAL, SizeKind.NO_AXIS):
            lines = [f"- `{r['name']}` ({_how(r)}): {_short(v.why, 300)}" for r, v in verdicts if v.kind is kind]
            found += _section(f"Sizes: {kind}", lines)
    escaped = sum(r.get("ours", {}).get("error", "").startswith("EscapedError") for r in records)
    return [*found, "", f"Exceptions that are not the package's own: {escaped}."]


def size_verdict(record: Record) -> Verdict:
    """Whether the file of a model keeps what it claims."""
    if not works(record, "ours"):
        return Verdict(SizeKind.NOT_EXPORTED, cause(record["ours"]["error"]))
    if outcome(record) != "equal":
        return Verdict(SizeKind.NOT_CALLED_RIGHT, _says(record))
    if not works(record, "sizes"):
        return Verdict(SizeKind.NOT_SHOWN, record["sizes"]["error"])
    found = record["sizes"]["value"]
    problem = found.get("problem", "")
    bad = [run for run in found["runs"] if run["outcome"] not in _SAYS_NOTHING]
    wrong = [run for run in bad if run["cause"] not in _NOT_THE_FILES and not run.get("outside")]
    if wrong:
        return Verdict(SizeKind.WRONG, "; ".join(f"{run['inputs']}: {run['detail']}" for run in wrong[:3]))
    if not _symbolic(record) and "no axis is dynamic" in record["ours"]["value"]["notes"] and not found["fixed"]:
        return Verdict(SizeKind.FIXED_AND_SAID, "no axis is dynamic") if problem else Verdict(SizeKind.NO_AXIS)
    if problem and not found["runs"]:
        return Verdict(SizeKind.NOT_SHOWN, problem)
    if _symbolic(record) and not any(run["outcome"] != "not comparable" for run in found["runs"][1:]):
        why = next((run["detail"] for run in found["runs"] if run["detail"]), "PyTorch takes none of the other sizes")
        return Verdict(SizeKind.NOT_SHOWN, why)
    if any(not axis["said"] for axis in found["fixed"]):
        return Verdict(SizeKind.FIXED_UNSAID, ", ".join(a["axis"] for a in found["fixed"] if not a["said"]))
    if found["fixed"]:
        return Verdict(SizeKind.FIXED_AND_SAID, ", ".join(axis["axis"] for axis in found["fixed"]))
    outside = [run for run in bad if run.get("outside")]
    if outside:
        return Verdict(SizeKind.RANGE_SAID, f"{outside[0]['inputs']}: {outside[0]['detail']}")
    if bad:
        return Verdict(SizeKind.ROUNDING, f"{bad[0]['inputs']}: {bad[0]['cause']}: {bad[0]['detail']}")
    return Verdict(SizeKind.EQUAL if _symbolic(record) else SizeKind.NO_AXIS)


def _symbolic(record: Record) -> bool:
    return any(isinstance(size, str) for axes in record["sizes"]["value"]["inputs"].values() for size in axes)


# --- text ------------------------------------------------------------------------------------------------------


def _any(record: Record) -> bool:
    return True


def _sources(records: Iterable[Record]) -> list[str]:
    return sorted({record["source"] for record in records}, reverse=True)


def _share(good: int, of: int) -> str:
    # Rounded down: 100% is all of them.
    return f"{good} of {of} ({100 * good // of}%)" if of else ""


def _how(record: Record) -> str:
    ours = record["ours"].get("value")
    if ours is None:
        return "not exported"
    return ", ".join(filter(None, (ours["exporter"], ours["variant"], "with consent" if ours["specialized"] else "")))


def _says(record: Record) -> str:
    return record["ours"]["value"]["check"]["says"] if works(record, "ours") else ""


def _short(text: str, most: int = 220) -> str:
    flat = " ".join(text.split()).replace("`", "'").replace("|", "\\|")
    return flat[:most] + ("…" if len(flat) > most else "")


def _section(title: str, lines: list[str], told: str = "") -> list[str]:
    if not lines:
        return []
    return [f"\n### {title}\n", *([f"{told}\n"] if told else []), *sorted(lines)]
