"""The report of a profile: rows by call, module, class or operator; JSON; a data frame."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from modelexport.analysis import Finding, read_report_file
from modelexport.display import Summary, summarized
from modelexport.errors import FileFormatError, InputError
from modelexport.hierarchy import json_schema
from modelexport.profiling.aggregation import sum_memory
from modelexport.profiling.records import (
    CallProfile,
    Memory,
    OwnedKernel,
    ProfileRow,
    Slice,
    Timing,
    middle_runs,
    timing,
)

ROOT_NAME = "(root)"

_LONGEST_NAME = 80
# In seconds; sums of larger numbers would overflow.
_LONGEST_RUN = 366 * 24 * 3600.0


class Grouping(enum.StrEnum):
    """What a row is."""

    CALL = "call"
    MODULE = "module"
    CLASS = "class"
    OP = "op"


class Sorting(enum.StrEnum):
    """What rows are sorted by, the largest first."""

    OWN = "own"
    TOTAL = "total"
    MEMORY = "memory"


class ProfileSettings(msgspec.Struct, frozen=True):
    """How the file was run.

    Attributes:
        runs: The number of measured runs.
        warmup: The number of runs before them.
        providers: The requested execution providers; empty for onnxruntime's default.
        threads: The threads of an operator; 0 for the default.
        optimization: The level of onnxruntime's graph optimization.
        inputs: The shape and type of each input.
        synthesized: Whether the inputs were synthesized.
        split_fused: Whether the time of fused kernels is spread over the calls whose work they do.
    """

    runs: int
    warmup: int = 0
    providers: tuple[str, ...] = ()
    threads: int = 0
    optimization: str = ""
    inputs: dict[str, str] = {}
    synthesized: bool = False
    split_fused: bool = False


def _summary(report: ProfileReport) -> Summary:
    facts = {
        "file": report.file,
        "runtime": report.runtime,
        "runs": report.settings.runs,
        "session_ms": round(report.session.median * 1e3, 3),
        "overhead": f"{report.overhead_share:.1%}",
        "findings": len(report.findings),
    }
    rows = [
        (row.name, row.class_name, _ms(row.own.median), _ms(row.total.median), f"{row.share:.1%}", row.nodes)
        for row in report.rows()
    ]
    return Summary(facts, ("call", "class", "own ms", "total ms", "share", "kernels"), rows)


@summarized(_summary)
class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """The profile of one file.

    Attributes:
        file: The file.
        graph_hash: The hash of its graph.
        runtime: The name and version of the runtime.
        settings: How it was run.
        session: The time of the whole session.
        overhead: The session's time outside of kernels.
        calls: The module calls, callers before the calls inside of them.
        kernels: The nodes of the executed graph with their times and owners, in the order of execution.
        timeline: The executions of kernels in the run with the median session time.
        selected: The ids of the selected calls, with those inside of them; None for all.
        findings: Calls that do not run on the requested provider.
        notes: What the user should know of the profile.
        schema_version: The version of this format.
    """

    file: str
    graph_hash: str
    runtime: str
    settings: ProfileSettings
    session: Timing
    overhead: Timing
    calls: tuple[CallProfile, ...]
    kernels: tuple[OwnedKernel, ...]
    timeline: tuple[Slice, ...] = ()
    selected: tuple[str, ...] | None = None
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()
    schema_version: int = 1

    @property
    def overhead_share(self) -> float:
        """The fraction of the session's time outside of kernels."""
        return self.overhead.mean / self.session.mean if self.session.mean else 0.0

    @property
    def unexplained(self) -> float:
        """The fraction of the session's median that the medians of all calls and the overhead do not add up to.

        Times add up exactly in each run, and so do means; medians of several rows do not.
        """
        added = sum(call.own.median for call in self.calls) + self.overhead.median
        return 1 - added / self.session.median if self.session.median else 0.0

    def __getitem__(self, call: str) -> CallProfile:
        """The profile of a call by its id.

        Raises:
            KeyError: There is no such call.
        """
        found = next((known for known in self.calls if known.id == call), None)
        if found is None:
            raise KeyError(call)
        return found

    def rows(self, by: str = "call", *, depth: int | None = None, sort: str = "own") -> list[ProfileRow]:
        """The rows of the report, the largest first, without those that own no kernel and contain none.

        Args:
            by: ``"call"``, ``"module"``, ``"class"`` or ``"op"``.
            depth: Count deeper modules for the module that encloses them.
            sort: ``"own"``, ``"total"`` or ``"memory"``.

        Raises:
            InputError: An argument is unknown.
        """
        for value, known in ((by, Grouping), (sort, Sorting)):
            if value not in list(known):
                raise InputError(f"{value!r} is not one of {', '.join(known)}")
        selected = None if self.selected is None else set(self.selected)
        chosen = [call for call in self.calls if selected is None or call.id in selected]
        found = self._operator_rows(chosen) if by == "op" else self._call_rows(chosen, by, depth)
        keys: dict[str, Callable[[ProfileRow], float]] = {
            "own": lambda row: row.own.median,
            "total": lambda row: row.total.median,
            "memory": lambda row: _bytes(row.memory),
        }
        return sorted((row for row in found if row.total.p90 or row.nodes), key=keys[sort], reverse=True)

    def _call_rows(self, chosen: Sequence[CallProfile], by: str, depth: int | None) -> list[ProfileRow]:
        calls = {call.id: call for call in self.calls}

        def shown(call: CallProfile) -> CallProfile:
            while depth is not None and _depth(call.path) > depth and call.parent in calls:
                call = calls[call.parent or ""]
            return call

        def name(call: CallProfile) -> str:
            return {"call": call.id, "module": call.path}.get(by, call.class_name)

        groups: dict[str, list[CallProfile]] = {}
        keys: dict[str, str] = {}
        for call in chosen:
            keys[call.id] = name(shown(call))
            groups.setdefault(keys[call.id], []).append(call)
        kernels = _by_call(self.kernels)

        def is_outermost(call: CallProfile, key: str) -> bool:
            around = call.parent
            while around is not None:
                if keys.get(around) == key:
                    return False
                around = calls[around].parent if around in calls else None
            return True

        def merged(key: str, members: list[CallProfile]) -> ProfileRow:
            named = [call for call in members if name(call) == key] or members
            outermost = [call for call in members if is_outermost(call, key)]
            return self._row(
                name=key or ROOT_NAME,
                class_name=shown(members[0]).class_name,
                calls=len({call.id for call in named}),
                own=_sum(call.own for call in members),
                total=_sum(call.total for call in outermost),
                kernels=[kernel for call in members for kernel in kernels.get(call.id, ())],
                members=members,
            )

        return [merged(key, members) for key, members in groups.items()]

    def _operator_rows(self, chosen: Sequence[CallProfile]) -> list[ProfileRow]:
        ids = {call.id for call in chosen}
        groups: dict[str, list[OwnedKernel]] = {}
        for kernel in self.kernels:
            if kernel.call in ids:
                groups.setdefault(kernel.op, []).append(kernel)

        def merged(op: str, kernels: list[OwnedKernel]) -> ProfileRow:
            seconds = np.sum([kernel.seconds for kernel in kernels], axis=0)
            calls = len({kernel.call for kernel in kernels})
            return self._row(name=op, class_name="", calls=calls, own=seconds, total=seconds, kernels=kernels)

        return [merged(op, kernels) for op, kernels in groups.items()]

    def _row(
        self,
        *,
        name: str,
        class_name: str,
        calls: int,
        own: np.ndarray,
        total: np.ndarray,
        kernels: Sequence[OwnedKernel],
        members: Sequence[CallProfile] = (),
    ) -> ProfileRow:
        middle = middle_runs(self.session.seconds)
        own_time, total_time = timing(own, middle), timing(total, middle)
        providers: dict[str, int] = {}
        for kernel in kernels:
            if kernel.provider:
                providers[kernel.provider] = providers.get(kernel.provider, 0) + 1
        inside = {call.id for call in members}
        most = max(members, key=lambda call: call.own.mean if call.source else -1.0, default=None)
        return ProfileRow(
            name=name,
            class_name=class_name,
            calls=calls,
            own=own_time,
            total=total_time,
            share=own_time.mean / self.session.mean if self.session.mean else 0.0,
            total_share=total_time.mean / self.session.mean if self.session.mean else 0.0,
            nodes=len(kernels),
            memory=sum_memory(kernels),
            providers=providers,
            fused_with=tuple(dict.fromkeys(c for call in members for c in call.fused_with if c not in inside)),
            fused_into=tuple(dict.fromkeys(c for call in members for c in call.fused_into if c not in inside)),
            source="" if most is None else most.source,
        )

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON."""
        content: dict[str, Any] = msgspec.to_builtins(self)
        return content

    def to_pandas(self, by: str = "call") -> Any:
        """The rows as a pandas data frame, in seconds and bytes.

        Raises:
            InputError: pandas is not installed, or `by` is unknown.
        """
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise InputError("to_pandas needs pandas, which is not installed: pip install pandas") from error
        return pandas.DataFrame([_flat(row) for row in self.rows(by)])


def read_profile(path: str | Path) -> ProfileReport:
    """Read a report that was written as JSON.

    Raises:
        InputError: The file cannot be read.
        FileFormatError: It is not a profile of this package.
    """
    try:
        report = msgspec.json.decode(read_report_file(path), type=ProfileReport)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FileFormatError(f"{path} was not written by modelexport profile --format json: {error}") from error
    problem = _inconsistency(report)
    if problem:
        raise FileFormatError(f"{path} was changed after modelexport profile wrote it: {problem}")
    return report


def _inconsistency(report: ProfileReport) -> str:
    """What cannot be in a report of this package, if anything."""
    runs = len(report.session.seconds)
    ids: set[str] = set()
    for call in report.calls:
        if call.id in ids:
            return f"the call {call.id[:_LONGEST_NAME]!r} is there twice"
        if call.parent is not None and call.parent not in ids:
            return f"the caller of {call.id[:_LONGEST_NAME]!r} is not before it"
        ids.add(call.id)
    timed = [report.overhead, *(timing for call in report.calls for timing in (call.own, call.total))]
    rows = [report.session.seconds, *(one.seconds for one in timed), *(kernel.seconds for kernel in report.kernels)]
    if not runs or any(len(seconds) != runs for seconds in rows):
        return "not all times are those of the same number of runs"
    if any(abs(second) > _LONGEST_RUN for seconds in rows for second in seconds):
        return "a run took longer than a year"
    if any(kernel.call not in ids for kernel in report.kernels):
        return "a kernel belongs to a call that is not there"
    if any(not 0 <= position < len(report.kernels) for position in (one.kernel for one in report.timeline)):
        return "the timeline has a kernel that is not there"
    return ""


def profile_schema() -> dict[str, Any]:
    """The JSON Schema of the output of ``modelexport profile --format json``."""
    return json_schema("modelexport profile", ProfileReport)


def _flat(row: ProfileRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "class": row.class_name,
        "calls": row.calls,
        "own": row.own.median,
        "own_p90": row.own.p90,
        "total": row.total.median,
        "total_p90": row.total.p90,
        "share": row.share,
        "total_share": row.total_share,
        "nodes": row.nodes,
        **{f"{name}_bytes": value for name, value in msgspec.structs.asdict(row.memory).items()},
        "providers": ", ".join(row.providers),
        "fused_with": ", ".join(row.fused_with),
        "fused_into": ", ".join(row.fused_into),
        "source": row.source,
    }


def _by_call(kernels: Iterable[OwnedKernel]) -> dict[str, list[OwnedKernel]]:
    found: dict[str, list[OwnedKernel]] = {}
    for kernel in kernels:
        found.setdefault(kernel.call, []).append(kernel)
    return found


def _sum(timings: Iterable[Timing]) -> np.ndarray:
    summed: np.ndarray = np.sum([one.seconds for one in timings], axis=0)
    return summed


def _bytes(memory: Memory) -> int:
    return sum(amount or 0 for amount in msgspec.structs.asdict(memory).values())


def _depth(path: str) -> int:
    return path.count(".") + 1 if path else 0


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"
