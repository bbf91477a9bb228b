"""profile: run a file in onnxruntime, and report time and memory by module call."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelexport.analysis import Finding, Severity
from modelexport.analysis.query import select_calls
from modelexport.analysis.retagging import feeds_of_model, project_owners
from modelexport.display import counted
from modelexport.errors import InputError, OnnxRunError
from modelexport.gc_pause import gc_paused
from modelexport.hierarchy import HierarchyDocument
from modelexport.limits import DEFAULT_RUN_LIMITS, RunLimits
from modelexport.ort import OPTIMIZATION_LEVELS, ProfiledSession
from modelexport.profiling.aggregation import Shares, profile_calls
from modelexport.profiling.ort_profile import read_ort_profile
from modelexport.profiling.owners import UNMATCHED, own_by_graph
from modelexport.profiling.records import Measurement, OwnedKernel, middle_runs, timing
from modelexport.profiling.report import ROOT_NAME, ProfileReport, ProfileSettings
from modelexport.profiling.split_fused import split_shares
from modelexport.storage import LoadedModel, ModelFile, find_hierarchy

Arrays = Mapping[str, npt.NDArray[Any]]

_DEFAULT_RUNS = 20
_DEFAULT_WARMUP = 3
_MOST_OPERATORS = 5


def profile(
    path: str | Path,
    inputs: Arrays | None = None,
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    axes: Mapping[str, int] | None = None,
    runs: int = _DEFAULT_RUNS,
    warmup: int = _DEFAULT_WARMUP,
    providers: Sequence[str] = (),
    threads: int = 0,
    optimization: str = "all",
    select: str | None = None,
    split_fused: bool = False,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> ProfileReport:
    """Run a file in onnxruntime and report the time and memory of each module call.

    The times are those of the graph that onnxruntime executes, after its own optimizations. Each of its nodes has an
    owner, as `retag` finds it; a fused node counts for its owner.

    Args:
        path: A file of modelexport, or of torch's exporters.
        inputs: Its inputs by name; None synthesizes them from types and shapes: random floats, and zeros and ones for
            integers, which are indices of any table.
        shapes: Shapes of synthesized inputs by name.
        axes: Sizes of dynamic axes of synthesized inputs by name.
        runs: How many runs are measured.
        warmup: How many runs come before them.
        providers: The execution providers, as ``"cuda"`` or ``"CUDAExecutionProvider"``; the CPU by default.
        threads: The threads of one operator; 0 for onnxruntime's default.
        optimization: onnxruntime's graph optimization: ``"all"``, ``"extended"``, ``"basic"`` or ``"off"``.
        select: Report only the calls that this selector names (docs/selectors.md).
        split_fused: Spread the time of a fused node over the calls whose work it does, by the times of their nodes in
            a run without optimization.
        limits: The limits of loading the file, and of each run.
        progress: Called with the number of finished runs and of all.

    Raises:
        InputError: An argument or an input cannot be used, or a provider is not available.
        FileFormatError: The file is not an ONNX model, or has no hierarchy.
        SelectorError: The selector cannot be read, or names no call.
        OnnxRunError: onnxruntime cannot load or run the file.
    """
    options = _Options(
        inputs=inputs,
        shapes=shapes or {},
        axes=axes or {},
        runs=runs,
        warmup=warmup,
        providers=tuple(providers),
        threads=threads,
        optimization=optimization,
        select=select,
        split_fused=split_fused,
        limits=limits,
    )
    return _profile_in_turns([path], options, progress)[0]


def profile_both(
    before: str | Path,
    after: str | Path,
    *,
    runs: int = _DEFAULT_RUNS,
    limits: RunLimits = DEFAULT_RUN_LIMITS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[ProfileReport, ProfileReport]:
    """Profile two files in turns, a run of each at a time, so that a change of the machine's load affects both.

    Inputs are synthesized. `profile` has the arguments and errors.
    """
    first, second = _profile_in_turns([before, after], _Options(runs=runs, limits=limits), progress)
    return first, second


@dataclasses.dataclass(frozen=True)
class _Options:
    """The arguments of `profile`."""

    inputs: Arrays | None = None
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    axes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    runs: int = _DEFAULT_RUNS
    warmup: int = _DEFAULT_WARMUP
    providers: tuple[str, ...] = ()
    threads: int = 0
    optimization: str = "all"
    select: str | None = None
    split_fused: bool = False
    limits: RunLimits = DEFAULT_RUN_LIMITS

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise InputError(f"{self.runs} runs measure nothing: give at least 1")
        for name, value in (("warmup", self.warmup), ("threads", self.threads)):
            if value < 0:
                raise InputError(f"{name} is {value}: give 0 or more")
        if self.optimization not in OPTIMIZATION_LEVELS:
            raise InputError(f"optimization {self.optimization!r} is not one of {', '.join(OPTIMIZATION_LEVELS)}")
        for axis, size in self.axes.items():
            if size < 1:
                raise InputError(f"axis {axis!r} is {size}: a size is at least 1")


class _ProfiledFile:
    """A file, its hierarchy, and the session that runs it."""

    def __init__(self, path: str | Path, options: _Options, stack: contextlib.ExitStack) -> None:
        self._options, self._stack = options, stack
        self.file = ModelFile(path)
        self._session = self._started(options.optimization)
        self._hierarchy = find_hierarchy(self.file)
        self._selected = None if options.select is None else selected_calls(self._hierarchy.document, options.select)
        self._session.open(self._candidates())

    def _started(self, optimization: str) -> ProfiledSession:
        options = self._options
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="modelexport-"))
        session = ProfiledSession(
            self.file.path,
            Path(folder),
            providers=options.providers,
            optimization=optimization,
            threads=options.threads,
            limits=options.limits,
        )
        self._stack.enter_context(session).start()
        return session

    def _candidates(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        options, document = self._options, self._hierarchy.document
        root = next((call for call in document.calls if call.parent is None), None)
        arguments = {tensor.tensor: tensor.name for tensor in root.inputs if tensor.tensor} if root is not None else {}
        return feeds_of_model(self.file.model, options.inputs, arguments, axes=options.axes, shapes=options.shapes)

    def run(self) -> None:
        """Run the file once more: opening it was its first run."""
        self._session.run()

    def report(self) -> ProfileReport:
        """The report of all runs so far."""
        options, feeds = self._options, self._session.feeds
        measurement, kernels = self._measured(self._session)
        settings = ProfileSettings(
            runs=options.runs,
            warmup=options.warmup,
            providers=options.providers,
            threads=options.threads,
            optimization=options.optimization,
            inputs={name: f"{'x'.join(map(str, a.shape)) or 'scalar'} {a.dtype}" for name, a in feeds.items()},
            synthesized=options.inputs is None,
            split_fused=options.split_fused,
        )
        return build_report(
            self.file,
            self._hierarchy.document,
            measurement,
            kernels,
            settings,
            shares=self._shares(kernels) if options.split_fused else None,
            selected=self._selected,
            notes=self._hierarchy.missing,
        )

    def _measured(self, session: ProfiledSession) -> tuple[Measurement, tuple[OwnedKernel, ...]]:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            # onnxruntime writes the profile meanwhile, which takes as long as finding the owners.
            written = pool.submit(session.close)
            executed = ModelFile(session.executed, weights=True).model
            projection = project_owners(self.file.model, self._hierarchy.document, executed)
        profile = read_ort_profile(
            written.result(), warmup=self._options.warmup, runtime=f"onnxruntime {session.version}"
        )
        if len(profile.measurement.session) < self._options.runs:
            raise OnnxRunError(
                f"onnxruntime recorded {len(profile.measurement.session):,} of {self._options.runs:,} runs: its "
                "profile has at most 1,000,000 kernels; give fewer --runs"
            )
        return profile.measurement, own_by_graph(profile, executed, projection)

    def _shares(self, kernels: Sequence[OwnedKernel]) -> Shares:
        """How fused kernels are split, from a session without optimization."""
        session = self._started("off")
        session.open([self._session.feeds])
        for _ in range(self._options.warmup + self._options.runs - 1):
            session.run()
        measurement, plain = self._measured(session)
        middle = middle_runs(measurement.session)
        seconds = {kernel.node: timing(kernel.seconds, middle).mean for kernel in plain}
        return split_shares(kernels, self._hierarchy.document, seconds)


def _profile_in_turns(
    paths: Sequence[str | Path], options: _Options, progress: Callable[[int, int], None]
) -> list[ProfileReport]:
    total = options.warmup + options.runs
    with gc_paused(), contextlib.ExitStack() as stack:
        files = [_ProfiledFile(path, options, stack) for path in paths]
        for done in range(1, total):
            progress(done, total)
            for file in files:
                file.run()
        progress(total, total)
        return [file.report() for file in files]


def build_report(
    file: LoadedModel | ModelFile,
    document: HierarchyDocument,
    measurement: Measurement,
    kernels: Sequence[OwnedKernel],
    settings: ProfileSettings,
    *,
    shares: Shares | None = None,
    selected: tuple[str, ...] | None = None,
    notes: Sequence[str] = (),
) -> ProfileReport:
    """The report of a measurement whose kernels have owners.

    Args:
        file: The profiled file.
        document: Its hierarchy.
        measurement: What a runtime measured.
        kernels: Its kernels with owners, in the same order.
        settings: How it was measured.
        shares: By position of a kernel, the fraction of its time by call; the owner has all of it by default.
        selected: The ids of the calls to report; None for all.
        notes: What the user should know, in addition to the notes of the measurement.
    """
    session = measurement.session
    middle = middle_runs(session)
    overhead = np.asarray(session) - np.sum([kernel.seconds for kernel in kernels], axis=0)
    unmatched = sum(kernel.kind == UNMATCHED for kernel in kernels)
    added = [*notes, *measurement.notes]
    if unmatched:
        added.append(
            f"{counted(unmatched, 'kernel')} of {len(kernels):,} not found in the graph: counted for the call around "
            "them, else for the root"
        )
    return ProfileReport(
        file=str(file.path),
        graph_hash=file.graph_hash,
        runtime=measurement.runtime,
        settings=settings,
        session=timing(session, middle),
        overhead=timing(overhead, middle),
        calls=profile_calls(document, kernels, session, shares or {}, dict(file.nodes)),
        kernels=tuple(kernels),
        timeline=measurement.timeline,
        selected=selected,
        findings=tuple(_fallbacks(document, kernels, settings.providers)),
        notes=tuple(added),
    )


def selected_calls(document: HierarchyDocument, selector: str) -> tuple[str, ...]:
    """The ids of the selected calls and of all calls inside of them."""
    found = dict.fromkeys(call.id for call in select_calls(document, selector))
    for call in document.calls:
        if call.parent in found:
            found[call.id] = None
    return tuple(found)


def _fallbacks(document: HierarchyDocument, kernels: Sequence[OwnedKernel], providers: Sequence[str]) -> list[Finding]:
    """A finding for each call with kernels elsewhere than on the first requested provider.

    A call whose kernels are all elsewhere, with those of the calls inside of it, is one finding.
    """
    if not providers:
        return []
    wanted = providers[0].lower().removesuffix("executionprovider")
    around = {call.id: call.parent for call in document.calls}
    # The kernels of each call and of those inside of it: all, and those elsewhere.
    every: Counter[str] = Counter()
    elsewhere: dict[str, list[OwnedKernel]] = defaultdict(list)
    for kernel in kernels:
        call: str | None = kernel.call
        while call is not None:
            every[call] += 1
            if kernel.provider.lower().removesuffix("executionprovider") != wanted:
                elsewhere[call].append(kernel)
            call = around.get(call)
    found: list[Finding] = []
    for call, inside in elsewhere.items():
        caller = around.get(call)
        if caller is not None and len(elsewhere[caller]) == every[caller]:
            continue
        # Of a call that is partly elsewhere, only its own kernels: the calls inside of it have their own findings.
        shown = inside if len(inside) == every[call] else [kernel for kernel in inside if kernel.call == call]
        if shown:
            where = ", ".join(sorted({kernel.provider for kernel in shown}))
            operators = ", ".join(list(dict.fromkeys(kernel.op for kernel in shown))[:_MOST_OPERATORS])
            found.append(
                Finding(
                    rule="provider-fallback",
                    severity=Severity.WARNING,
                    message=f"{call or ROOT_NAME}: {counted(len(shown), 'kernel')} of {every[call]:,} on {where}, not "
                    f"on {providers[0]} ({operators})",
                    fix="use operators that the provider supports there, or choose another provider",
                    node=shown[0].node,
                )
            )
    return found
