"""The page of the sweep: counts and shares of the records, and failures grouped by cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.sweep_causes import MISSING, Record, cause, whose, whose_wrong_file, works
from benchmarks.sweep_records import PLAIN_WAYS

_INTRODUCTION = """# The sweep

Every model type of transformers that has a base model, every family of timm and every model class of diffusers, as
installed. Each is built small from its configuration (sizes are capped by rules that know no architecture), gets
inputs that `modelexport` synthesizes, and is exported with each exporter. `make sweep` runs it and writes this page. A
run resumes where the last one stopped; `--count` chooses a fair sample of the whole.
"""

_NOTES = """
- *plain*: `torch.onnx.export` with its defaults. *Caches off*: the same with `use_cache=False` in the configuration
  if it has that field; it is tried only where plain fails, and counts as good where plain succeeds.
- *transformers.exporters*: `OnnxExporter` with its defaults. *TorchScript*: `torch.onnx.export(dynamo=False)`; if it
  does not support the arguments, the same for a wrapper with only tensors as inputs and outputs.
- *ours*: `modelexport.export_model` with its defaults, which tries several exporters in order. Where only tracing could
  export a model whose code depends on values of its inputs, it asks for consent; the next row counts these files too.
- A share is of the models that were measured for it. {reused}
- Each export runs in its own process, limited to {limits} s of CPU time and to a few GiB of memory. A process that
  crashes or exceeds a limit counts as failed.
"""


_NOT_MEASURED = "not measured"


def page(records: Sequence[Record], exist: Mapping[str, int]) -> str:
    """The page in Markdown.

    Args:
        records: The results of the models that were tried.
        exist: How many models each source has.
    """
    limits = sorted({record["limit"] for record in records if "limit" in record})
    notes = _NOTES.format(limits=" or ".join(map(str, limits)), reused=_reused(records))
    parts = [_INTRODUCTION, *_setups(records), *_shares(records, exist), notes, *_written(records), *_rules(records)]
    parts += [*_failures(records), *_cases(records)]
    return "\n".join(parts).rstrip() + "\n"


def _setups(records: Sequence[Record]) -> list[str]:
    """With what the models were measured: the newest date, and how many models at each commit."""
    setups = [record["setup"] for record in records if "setup" in record]
    if not setups:
        return []
    versions = dict.fromkeys(
        ", ".join(f"{name} {version}" for name, version in setup["versions"].items()) for setup in setups
    )
    commits = Counter(setup["commit"] for setup in setups)
    shown = ", ".join(f"{commit} ({count} models)" for commit, count in commits.most_common())
    states = len({setup["code"] for setup in setups})
    code = "The code that the sweep runs is the same in all of them" if states == 1 else f"{states} states of the code"
    date = max(setup["date"] for setup in setups)
    return [f"Measured until {date} with {'; '.join(versions)}. Commits: {shown}. {code}.", ""]


def _reused(records: Sequence[Record]) -> str:
    days = Counter(r[way]["measured"] for r in records for way in PLAIN_WAYS if "measured" in r.get(way, {}))
    if not days:
        return "Each export was made for this page."
    shown = ", ".join(f"{count} on {day}" for day, count in sorted(days.items()))
    return f"Exports of other exporters made with the same libraries for an earlier page: {shown}."


def _caches_off(record: Record) -> bool:
    return works(record, "plain") or works(record, "plain_no_cache")


def _shares(records: Sequence[Record], exist: Mapping[str, int]) -> list[str]:
    columns: list[tuple[str, list[Record], int]] = [
        (source, [r for r in records if r["source"] == source], count) for source, count in exist.items()
    ]
    columns.append(("all", list(records), sum(exist.values())))

    def row(title: str, cell: Callable[[list[Record], int], str]) -> str:
        return f"| {title} | {' | '.join(cell(found, count) for _, found, count in columns)} |"

    def share(good: Callable[[Record], bool], step: str) -> Callable[[list[Record], int], str]:
        def cell(found: list[Record], _: int) -> str:
            measured = [record for record in found if works(record, "forward") and step in record]
            return _share(sum(map(good, measured)), len(measured))

        return cell

    lines = [
        f"| | {' | '.join(name for name, _, _ in columns)} |",
        f"|---|{'---|' * len(columns)}",
        row("tried, of those that exist", lambda found, count: f"{len(found)} of {count}"),
        row("need a library that is not installed", lambda found, _: str(sum(map(_needs_library, found)))),
        row("built small, of the others", _built_share),
        row("run a forward pass, of those built", _running_share),
        row("plain `torch.onnx.export`", share(lambda r: works(r, "plain"), "plain")),
        row("plain, caches off", share(_caches_off, "plain")),
        row("`transformers.exporters`", share(lambda r: works(r, "transformers"), "transformers")),
        row("TorchScript", share(lambda r: works(r, "torchscript"), "torchscript")),
        row("**ours**", share(lambda r: works(r, "ours") and not _is_specialized(r), "ours")),
        row("ours, with `allow_specialization` where it asks for it", share(lambda r: works(r, "ours"), "ours")),
        row("**ours, runs in onnxruntime and equals PyTorch**", share(_is_right, "ours")),
        row("the same, without nondeterministic models", _right_share),
    ]
    return ["Exports are shares of the models that run a forward pass.", "", *lines]


def _outcome(record: Record) -> str | None:
    return record["ours"]["value"].get("check", {}).get("outcome") if works(record, "ours") else None


def _is_specialized(record: Record) -> bool:
    return bool(record["ours"]["value"].get("specialized"))


def _is_right(record: Record) -> bool:
    return _outcome(record) == "equal"


def _right_share(found: list[Record], _: int) -> str:
    comparable = [r for r in found if works(r, "forward") and _outcome(r) != "nondeterministic"]
    return _share(sum(map(_is_right, comparable)), len(comparable))


def _needs_library(record: Record) -> bool:
    return any(whose(record, step) == MISSING for step in ("built", "forward") if "error" in record.get(step, {}))


def _built_share(found: list[Record], _: int) -> str:
    possible = [record for record in found if not _needs_library(record)]
    return _share(sum(works(record, "built") for record in possible), len(possible))


def _running_share(found: list[Record], _: int) -> str:
    built = [record for record in found if works(record, "built") and not _needs_library(record)]
    return _share(sum(works(record, "forward") for record in built), len(built))


def _share(good: int, of: int) -> str:
    # Rounded down: 100% is all of them.
    return f"{good} of {of} ({100 * good // of}%)" if of else _NOT_MEASURED


def _checked(records: Iterable[Record], check: str) -> list[tuple[Record, Any]]:
    """The models with the outcome of one check, where the check did not fail."""
    found = [(r, r["checks"]["value"].get(check)) for r in records if works(r, "ours") and works(r, "checks")]
    return [(r, outcome) for r, outcome in found if outcome is not None and not _is_error(outcome)]


def _compared_bytes(records: Iterable[Record]) -> list[tuple[Record, bool]]:
    """The models whose exporter is known to work without us, and whether ours has the same bytes."""
    found = [(r, r["same_bytes"]["value"]) for r in records if works(r, "same_bytes")]
    return [(r, same) for r, same in found if same is not None]


def _is_error(outcome: Any) -> bool:
    return isinstance(outcome, dict) and isinstance(outcome.get("error"), str)


def _written(records: Sequence[Record]) -> list[str]:
    ours = [record for record in records if works(record, "ours")]
    exporters: dict[str, int] = defaultdict(int)
    for record in ours:
        exporters[f"{record['ours']['value']['strategy']} ({record['ours']['value']['exporter']})"] += 1
    plain = [record for record in records if works(record, "plain")]
    same = _compared_bytes(records)
    as_plain = [(r, good) for r, good in same if works(r, "plain") and r["ours"]["value"]["exporter"] == "dynamo"]
    by_value, by_us = _checked(records, "contaminated"), _checked(records, "judged")
    extracted = _checked(records, "extracted")
    kinds = ("equal", "reordered", "different", "refused")
    calls = {kind: sum(outcome.get(kind, 0) for _, outcome in extracted) for kind in kinds}
    told_of_calls = (
        f"{calls['equal']} equal, {calls['reordered']} permuted without effect on the enclosing call, "
        f"{calls['different']} different, {calls['refused']} refused or not comparable"
    )

    def clean(checked: list[tuple[Record, Any]]) -> str:
        return _good((not outcome["count"] for _, outcome in checked))

    told = (
        ("By strategy and exporter", ", ".join(f"{n} {name}" for name, n in sorted(exporters.items(), key=_most))),
        ("Where plain `torch.onnx.export` succeeds, ours does", _good(works(r, "ours") for r in plain)),
        ("Same bytes as plain, after `strip_hierarchy`", _good(good for _, good in as_plain)),
        ("Same bytes as the exporter that ours used, where that exporter works alone", _good(good for _, good in same)),
        ("Every node has an owner", _good(r["ours"]["value"]["coverage"] == 1 for r in ours)),
        ("No contaminated node, by the value check of the tests", clean(by_value)),
        ("Tensors it checked", f"{sum(o['judged'] for _, o in by_value):,}" if by_value else _NOT_MEASURED),
        ("No contaminated node, by `validate --check-contamination` with the model", clean(by_us)),
        (
            "onnxruntime equals PyTorch (rtol 1e-3, atol 1e-4)",
            _good(outcome["equal"] for _, outcome in _checked(records, "runtime")),
        ),
        (
            "Randomly chosen calls, extracted and compared with PyTorch's module",
            told_of_calls if extracted else _NOT_MEASURED,
        ),
    )
    return ["\n## Files written by ours\n", *(f"- {title}: {text}." for title, text in told)]


def _good(outcomes: Iterable[bool]) -> str:
    found = list(outcomes)
    return _share(sum(found), len(found))


def _most(entry: tuple[str, int]) -> int:
    return -entry[1]


def _rules(records: Sequence[Record]) -> list[str]:
    table = rule_table(records)
    return ["\n## Which rules found the inputs\n", *table] if table else []


def rule_table(records: Sequence[Record]) -> list[str]:
    """How many models each rule of the input synthesis led to accepted inputs."""
    found = [record["forward"] for record in records if "rules" in record.get("forward", {})]
    lines = []
    for kind, rules_of in (
        ("first proposal", lambda forward: forward["rules"][:1]),
        ("guess of an argument", lambda forward: forward["guesses"].values()),
        ("repair", lambda forward: forward["rules"][1:]),
    ):
        models = Counter(rule for forward in found for rule in set(rules_of(forward)))
        lines += [f"| {kind} | `{rule}` | {count} |" for rule, count in sorted(models.items(), key=_most)]
    return ["| | rule | models |", "|---|---|---|", *lines] if lines else []


def _failures(records: Sequence[Record]) -> list[str]:
    lines = []
    for title, step in (
        ("Not exported by ours, by cause", "ours"),
        ("No forward pass on synthesized inputs, by cause", "forward"),
        ("Not built small, by cause", "built"),
    ):
        causes: dict[tuple[str, str], list[Record]] = defaultdict(list)
        for record in records:
            if "error" in record.get(step, {}):
                causes[whose(record, step), cause(record[step]["error"])].append(record)
        lines += [f"\n## {title}\n"]
        for (owner, text), found in sorted(causes.items(), key=lambda entry: (-len(entry[1]), entry[0])):
            lines.append(f"- {len(found)} of ({owner}): {text}: {_names(found)}")
        lines += [] if causes else ["None."]
    return lines


def _names(records: Iterable[Record]) -> str:
    names = sorted(record["name"] for record in records)
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(f"`{name}`" for name in names[:8]) + more


def _cases(records: Sequence[Record]) -> list[str]:
    found: list[str] = []

    def section(title: str, lines: list[str]) -> None:
        if lines:
            found.extend([f"\n## {title}\n", *sorted(lines)])

    section(
        "Exported by another exporter, but not by ours",
        [
            f"- `{r['name']}`: {way}"
            for r in records
            for way in ("plain", "plain_no_cache", "transformers", "torchscript")
            if works(r, way) and not works(r, "ours")
        ],
    )
    section(
        "Exported, and not shown to be right",
        [
            f"- `{r['name']}` ({r['ours']['value']['exporter']}; {whose_wrong_file(r)}): "
            f"{_code(r['ours']['value']['check']['says'])}"
            for r in records
            if _outcome(r) not in (None, "equal", "nondeterministic")
        ],
    )
    section(
        "Other bytes than the same exporter", [f"- `{r['name']}`" for r, same in _compared_bytes(records) if not same]
    )
    for check in ("contaminated", "judged"):
        section(
            f"Contaminated, by {'the value check' if check == 'contaminated' else '`validate`'}",
            [
                f"- `{r['name']}`: {o['count']}, {_code(o['cases'][0])}"
                for r, o in _checked(records, check)
                if o["count"]
            ],
        )
    section(
        "onnxruntime differs from PyTorch",
        [
            f"- `{r['name']}` ({r['ours']['value']['exporter']}): off by {o['error']:.2g}{_why(o)}"
            for r, o in _checked(records, "runtime")
            if not o["equal"]
        ],
    )
    section(
        "Calls that differ when extracted",
        [f"- `{r['name']}`: {_code(o['cases'][0])}" for r, o in _checked(records, "extracted") if o["different"]],
    )
    section(
        "Checks that failed",
        [
            f"- `{r['name']}`: {check}: {cause(outcome['error'])}"
            for r in records
            if works(r, "ours") and works(r, "checks")
            for check, outcome in r["checks"]["value"].items()
            if _is_error(outcome)
        ]
        + [
            f"- `{r['name']}`: {cause(r['checks']['error'])}"
            for r in records
            if "checks" in r and not works(r, "checks")
        ],
    )
    return found


def _why(runtime: Mapping[str, Any]) -> str:
    """The source of the difference, if known."""
    if runtime.get("random"):
        return ": PyTorch's own results are nondeterministic and cannot be compared"
    if runtime.get("equal_unoptimized"):
        return f": onnxruntime's own optimizations; without them it is equal ({runtime['error_unoptimized']:.2g})"
    if "equal_unoptimized" not in runtime:
        return ""
    introduced = f": introduced by the nodes of `{runtime['introduced']}`" if runtime.get("introduced") else ""
    return f"{introduced} (without onnxruntime's optimizations by {runtime['error_unoptimized']:.2g})"


def _code(text: str) -> str:
    return "`" + text.replace("`", "'")[:200] + "`"
