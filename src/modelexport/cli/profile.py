"""`modelexport profile`: the time and memory of each module: measured, imported, or counted without a run."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelexport.cli.model_options import MODEL_HELP, InputOptions, ModelLoading, RunLimitOptions
from modelexport.cli.options import LimitOption, SelectOption, given_options, option, parse_axes, refuse_other_options
from modelexport.cli.output import FINDINGS, Activity, Output, ReportFile, format_option, json_text
from modelexport.cli.profile_changes import changes_text
from modelexport.cli.profile_text import ProfileView, profile_csv, profile_text
from modelexport.cli.static_profile import static_output
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.profiling import ProfileReport


class ProfileFormat(enum.StrEnum):
    """The formats of a profile; a table is the one for people."""

    HUMAN = "human"
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    TRACE = "trace"
    COLLAPSED = "collapsed"
    SPEEDSCOPE = "speedscope"


class By(enum.StrEnum):
    """What a row is."""

    CALL = "call"
    MODULE = "module"
    CLASS = "class"
    OP = "op"


class Sort(enum.StrEnum):
    """What rows are sorted by."""

    OWN = "own"
    TOTAL = "total"
    MEMORY = "memory"


class Optimization(enum.StrEnum):
    """The levels of onnxruntime's graph optimization."""

    ALL = "all"
    EXTENDED = "extended"
    BASIC = "basic"
    OFF = "off"


_RUN = "Run"
_INSTEAD = "Instead of a run"
_REPORT = "Report"
# The options that do not say how to run the file.
_OF_EVERY_REPORT = frozenset({"file", "by", "select", "depth", "sort", "limit"}) | frozenset(
    {"output_format", "output", "force", "quiet", "verbose", "debug"}
)
_OF_STATIC_REPORTS = _OF_EVERY_REPORT | {"static", "axis"}
_OF_IMPORTS = _OF_EVERY_REPORT | {"imported", "compare", "source", "timeout", "memory_limit"}


@dataclasses.dataclass(frozen=True)
class RunOptions:
    """The options for how the file is run."""

    axis: Annotated[
        list[str] | None,
        option("Inputs", "The size of a dynamic axis of synthesized inputs, as batch=8; repeat for more."),
    ] = None
    runs: Annotated[int, option(_RUN, "Measured runs.")] = 20
    warmup: Annotated[int, option(_RUN, "Runs before them, which do not count.")] = 3
    provider: Annotated[
        list[str] | None,
        option(_RUN, "An execution provider of onnxruntime (cpu, cuda, ...); repeat in order of preference."),
    ] = None
    threads: Annotated[int, option(_RUN, "Threads of one operator; 0 for onnxruntime's default.")] = 0
    optimization: Annotated[Optimization, option(_RUN, "onnxruntime's graph optimization.")] = Optimization.ALL

    @property
    def axes(self) -> dict[str, int]:
        """The sizes of dynamic axes by name.

        Raises:
            InputError: One of them cannot be read.
        """
        return parse_axes(self.axis or [])


@dataclasses.dataclass(frozen=True)
class RowOptions:
    """The options for what the report shows."""

    by: Annotated[By, option(_REPORT, "What a row is.")] = By.CALL
    select: SelectOption = None
    depth: Annotated[
        int | None, option(_REPORT, "Count modules deeper than this many levels for those around them.", min=0)
    ] = None
    sort: Annotated[Sort, option(_REPORT, "What rows are sorted by, the largest first.")] = Sort.OWN
    split_fused: Annotated[
        bool,
        option(
            _REPORT,
            "Spread fused nodes over the modules whose work they do, by the times without optimization.",
            "--split-fused",
        ),
    ] = False
    compare: Annotated[
        Path | None,
        option(_REPORT, "A profile written with --format json: show what became faster or slower since.", "--compare"),
    ] = None
    source: Annotated[
        bool, option(_REPORT, "Show the source line behind the most expensive node of each row.", "--source")
    ] = False
    limit: LimitOption = None

    def earlier(self, form: ProfileFormat) -> ProfileReport | None:
        """The profile to compare with; None if there is none.

        Raises:
            InputError: It cannot be read, or a comparison does not have this format.
            FileFormatError: It is not a profile.
        """
        if self.compare is None:
            return None
        if form not in (ProfileFormat.HUMAN, ProfileFormat.TABLE, ProfileFormat.JSON):
            raise InputError(f"a comparison has the formats human and json, not {form.value}")
        from modelexport.profiling import read_profile

        return read_profile(self.compare)


def profile(
    *,
    context: typer.Context,
    file: Annotated[
        Path, typer.Argument(help="An ONNX file of modelexport, or of torch's exporters.", show_default=False)
    ],
    model: Annotated[
        str | None,
        option("Model", f"A model to take example inputs from: {MODEL_HELP[0].lower()}{MODEL_HELP[1:]}"),
    ] = None,
    loading: ModelLoading,
    inputs: InputOptions,
    run: RunOptions,
    limits: RunLimitOptions,
    static: Annotated[
        bool,
        option(_INSTEAD, "FLOPs, parameters and memory traffic from shapes, without a run.", "--static"),
    ] = False,
    imported: Annotated[
        str | None,
        option(
            _INSTEAD,
            "Take the times from a profile of another tool: ort:profile.json, trt:profile.json,layers.json or "
            "openvino:exec_graph.xml.",
            "--import",
            metavar="SOURCE",
        ),
    ] = None,
    shown: RowOptions,
    output_format: Annotated[
        ProfileFormat | None,
        format_option(
            "For people (human or table), programs, spreadsheets, Perfetto (trace), or flame graphs (collapsed)."
        ),
    ] = None,
    report: ReportFile,
    out: Output,
) -> None:
    """Show which modules are slow, large, or on another device.

    Runs the file in onnxruntime with its profiler, and gives each node of the graph that it executes, fused nodes
    included, to the module call that owns it. Without inputs, they are synthesized from the types and shapes in the
    file. Times are medians over runs. --static counts instead of running, --import reads another tool's profile.

    Exits with 1 if modules do not run on the requested provider, or with
    --compare if some became slower.

    Examples:

        modelexport profile model.onnx

        modelexport profile model.onnx --by class --sort total --source

        modelexport profile model.onnx --select encoder --split-fused --provider cpu

        modelexport profile model.onnx --format speedscope -o profile.speedscope.json

        modelexport profile quantized.onnx --compare model-profile.json

        modelexport profile model.onnx --static --by class

        modelexport profile cnn.onnx --import openvino:exec_graph.xml
    """
    inputs.check()
    form = report.form(output_format, ProfileFormat)
    report.check(file)
    if static:
        refuse_other_options(context, "--static does not run the file", _OF_STATIC_REPORTS)
        report.write(_count(file, run, shown, form, report, out), out)
        return
    if imported is not None:
        refuse_other_options(context, "--import takes the times from a profile", _OF_IMPORTS)
    earlier = shown.earlier(form)
    with out.running_model() as activity:
        if imported is not None:
            from modelexport.profiling.imported import import_profile

            activity.show(f"loading {file}")
            found = import_profile(file, imported, select=shown.select, limits=limits.limits)
        else:
            given = _given_inputs(file, model, loading, inputs, run, out)
            activity.show(f"loading {file}")
            found = _measure(file, given, run, shown, limits, activity)
    if earlier is not None:
        _write_changes(earlier, found, shown, form, report, out)
        return
    report.write(_profile_output(found, shown, form, report), out)
    if found.findings:
        raise typer.Exit(FINDINGS)


def _count(file: Path, run: RunOptions, shown: RowOptions, form: ProfileFormat, report: ReportFile, out: Output) -> str:
    """The cost of the file without a run, in a format."""
    from modelexport.profiling.static_cost import profile_statically

    with out.working(f"counting {file}"):
        costs = profile_statically(file, axes=run.axes, select=shown.select)
    rows = costs.rows(shown.by.value, depth=shown.depth, sort=shown.sort.value)
    return static_output(costs, rows, shown.by.value, form.value, report.rows(shown.limit), report.width)


@dataclasses.dataclass(frozen=True)
class _GivenInputs:
    """The inputs by name, None to synthesize them; and the shapes of synthesized ones."""

    arrays: Mapping[str, Any] | None = None
    shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)


def _given_inputs(
    file: Path, model: str | None, loading: ModelLoading, inputs: InputOptions, run: RunOptions, out: Output
) -> _GivenInputs:
    if run.axes and (model is not None or inputs.inputs is not None):
        raise InputError("--axis is for synthesized inputs: leave out --model and --inputs, or --axis")
    if model is not None:
        from modelexport.verification import feeds_of_file

        sourced = loading.load(model, out)
        return _GivenInputs(feeds_of_file(file, sourced.model, inputs.choose(sourced, out, file)))
    from modelexport.input_options import read_arrays, read_shape

    without = [name for name in given_options(loading, inputs) if name not in ("--inputs", "--input-shape")]
    if without:
        raise InputError(f"{without[0]} is only for --model: give it too")
    if inputs.inputs is not None:
        if inputs.inputs.suffix == ".json":
            raise InputError(f"{inputs.inputs}: a .json file of inputs needs --model; without it, give an .npz file")
        return _GivenInputs(read_arrays(inputs.inputs))
    for text in inputs.input_shape or ():
        if ":" in text:
            raise InputError(f"--input-shape {text!r}: the file has the type of its inputs; write name=1x16")
    given = [read_shape(text) for text in inputs.input_shape or ()]
    return _GivenInputs(shapes={shape.name: shape.shape for shape in given})


def _measure(
    file: Path, given: _GivenInputs, run: RunOptions, shown: RowOptions, limits: RunLimitOptions, activity: Activity
) -> ProfileReport:
    """Run the file."""
    from modelexport.profiling import profile as profile_file

    return profile_file(
        file,
        given.arrays,
        shapes=given.shapes,
        axes=run.axes,
        runs=run.runs,
        warmup=run.warmup,
        providers=run.provider or (),
        threads=run.threads,
        optimization=run.optimization.value,
        select=shown.select,
        split_fused=shown.split_fused,
        limits=limits.limits,
        progress=lambda done, total: activity.show(f"run {done} of {total}"),
    )


def _write_changes(
    earlier: ProfileReport,
    found: ProfileReport,
    shown: RowOptions,
    form: ProfileFormat,
    report: ReportFile,
    out: Output,
) -> None:
    """Write what changed since an earlier profile; modules that became slower are findings."""
    from modelexport.profiling import compare_profiles

    changes = compare_profiles(earlier, found)
    is_json = form is ProfileFormat.JSON
    report.write(json_text(changes.as_dict()) if is_json else changes_text(changes, report, shown.limit), out)
    if changes.slower:
        raise typer.Exit(FINDINGS)


def _profile_output(found: ProfileReport, shown: RowOptions, form: ProfileFormat, report: ReportFile) -> str:
    """A measured or imported profile in a format."""
    from modelexport.profiling import as_collapsed, as_speedscope, as_trace

    if form is ProfileFormat.JSON:
        return json_text(found.as_dict())
    if form is ProfileFormat.TRACE:
        return json_text(as_trace(found))
    if form is ProfileFormat.COLLAPSED:
        return as_collapsed(found)
    if form is ProfileFormat.SPEEDSCOPE:
        return json_text(as_speedscope(found))
    limit = report.rows(shown.limit)
    view = ProfileView(shown.by.value, shown.depth, shown.sort.value, shown.source, limit, report.width)
    return profile_csv(found, view) if form is ProfileFormat.CSV else profile_text(found, view)
