"""`modelexport profile`: the time and memory of each module, measured in onnxruntime."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelexport.cli.flame_graph import flame_graph
from modelexport.cli.model_options import MODEL_HELP, InputOptions, ModelLoading, RunLimitOptions
from modelexport.cli.options import (
    LimitOption,
    SelectOption,
    given_options,
    option,
    parse_axes,
    refuse_other_options,
)
from modelexport.cli.output import FINDINGS, ROOT, Output, ReportFile, format_option, json_text
from modelexport.cli.pages import Section, as_csv, as_text
from modelexport.cli.profile_changes import changes_text
from modelexport.cli.static_profile import static_output
from modelexport.display import Cell, counted
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.profiling import ProfileReport, ProfileRow, Timing


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


_MILLISECONDS = 1e3
_LONG_RUN = 0.1
_THOUSAND = 1000
_RUN = "Run"
_INSTEAD = "Instead of a run"
_REPORT = "Report"
# The options that do not say how to run the file.
_OF_EVERY_REPORT = frozenset({"file", "by", "select", "depth", "sort", "limit"}) | frozenset(
    {"output_format", "output", "force", "quiet", "verbose", "debug"}
)
_OF_STATIC_REPORTS = _OF_EVERY_REPORT | {"static", "axis"}
_OF_IMPORTS = _OF_EVERY_REPORT | {"imported", "compare", "source", "timeout", "memory_limit"}


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
    axis: Annotated[
        list[str] | None,
        option("Inputs", "The size of a dynamic axis of synthesized inputs, as batch=8; repeat for more."),
    ] = None,
    runs: Annotated[int, option(_RUN, "Measured runs.")] = 20,
    warmup: Annotated[int, option(_RUN, "Runs before them, which do not count.")] = 3,
    provider: Annotated[
        list[str] | None,
        option(_RUN, "An execution provider of onnxruntime (cpu, cuda, ...); repeat in order of preference."),
    ] = None,
    threads: Annotated[int, option(_RUN, "Threads of one operator; 0 for onnxruntime's default.")] = 0,
    optimization: Annotated[Optimization, option(_RUN, "onnxruntime's graph optimization.")] = Optimization.ALL,
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
    by: Annotated[By, option(_REPORT, "What a row is.")] = By.CALL,
    select: SelectOption = None,
    depth: Annotated[
        int | None, option(_REPORT, "Count modules deeper than this many levels for those around them.", min=0)
    ] = None,
    sort: Annotated[Sort, option(_REPORT, "What rows are sorted by, the largest first.")] = Sort.OWN,
    split_fused: Annotated[
        bool,
        option(
            _REPORT,
            "Spread fused nodes over the modules whose work they do, by the times without optimization.",
            "--split-fused",
        ),
    ] = False,
    compare: Annotated[
        Path | None,
        option(_REPORT, "A profile written with --format json: show what became faster or slower since.", "--compare"),
    ] = None,
    source: Annotated[
        bool, option(_REPORT, "Show the source line behind the most expensive node of each row.", "--source")
    ] = False,
    limit: LimitOption = None,
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
        from modelexport.profiling.static_cost import profile_statically

        with out.working(f"counting {file}"):
            costs = profile_statically(file, axes=parse_axes(axis or []), select=select)
        costed = costs.rows(by.value, depth=depth, sort=sort.value)
        report.write(static_output(costs, costed, by.value, form.value, report.rows(limit), report.width), out)
        return
    if imported is not None:
        refuse_other_options(context, "--import takes the times from a profile", _OF_IMPORTS)
    if compare is not None and form not in (ProfileFormat.HUMAN, ProfileFormat.TABLE, ProfileFormat.JSON):
        raise InputError(f"a comparison has the formats human and json, not {form.value}")
    axes = parse_axes(axis or [])
    if axes and (model is not None or inputs.inputs is not None):
        raise InputError("--axis is for synthesized inputs: leave out --model and --inputs, or --axis")
    from modelexport.profiling import as_collapsed, as_speedscope, as_trace, compare_profiles, read_profile
    from modelexport.profiling import profile as profile_file
    from modelexport.profiling.imported import import_profile

    earlier = None if compare is None else read_profile(compare)

    with out.running_model() as activity:
        given, shapes = _inputs(file, model, loading, inputs, out)
        activity.show(f"loading {file}")
        if imported is not None:
            found = import_profile(file, imported, select=select, limits=limits.limits)
        else:
            found = profile_file(
                file,
                given,
                shapes=shapes,
                axes=axes,
                runs=runs,
                warmup=warmup,
                providers=provider or (),
                threads=threads,
                optimization=optimization.value,
                select=select,
                split_fused=split_fused,
                limits=limits.limits,
                progress=lambda done, total: activity.show(f"run {done} of {total}"),
            )
    if earlier is not None:
        changes = compare_profiles(earlier, found)
        is_json = form is ProfileFormat.JSON
        report.write(json_text(changes.as_dict()) if is_json else changes_text(changes, report, limit), out)
        if changes.slower:
            raise typer.Exit(FINDINGS)
    elif form is ProfileFormat.JSON:
        report.write(json_text(found.as_dict()), out)
    elif form is ProfileFormat.CSV:
        rows = found.rows(by.value, depth=depth, sort=sort.value)
        report.write(as_csv(_CSV_HEADERS, [_csv_row(row) for row in rows]), out)
    elif form is ProfileFormat.TRACE:
        report.write(json_text(as_trace(found)), out)
    elif form is ProfileFormat.COLLAPSED:
        report.write(as_collapsed(found), out)
    elif form is ProfileFormat.SPEEDSCOPE:
        report.write(json_text(as_speedscope(found)), out)
    else:
        rows = found.rows(by.value, depth=depth, sort=sort.value)
        report.write(_text(found, rows, by, source, report.rows(limit), report.width), out)
    if found.findings:
        raise typer.Exit(FINDINGS)


def _inputs(
    file: Path, model: str | None, loading: ModelLoading, inputs: InputOptions, out: Output
) -> tuple[Mapping[str, Any] | None, dict[str, tuple[int, ...]]]:
    """The given inputs by name, None to synthesize them; and given shapes."""
    if model is not None:
        from modelexport.verification import feeds_of_file

        sourced = loading.load(model, out)
        return feeds_of_file(file, sourced.model, inputs.choose(sourced, out)), {}
    from modelexport.input_options import read_arrays, read_shape

    without = [name for name in given_options(loading, inputs) if name not in ("--inputs", "--input-shape")]
    if without:
        raise InputError(f"{without[0]} is only for --model: give it too")
    if inputs.inputs is not None:
        if inputs.inputs.suffix == ".json":
            raise InputError(f"{inputs.inputs}: a .json file of inputs needs --model; without it, give an .npz file")
        return read_arrays(inputs.inputs), {}
    for text in inputs.input_shape or ():
        if ":" in text:
            raise InputError(f"--input-shape {text!r}: the file has the type of its inputs; write name=1x16")
    given = [read_shape(text) for text in inputs.input_shape or ()]
    return None, {shape.name: shape.shape for shape in given}


def _headers(by: By, unit: str) -> tuple[str, ...]:
    return (
        *(by.value, "class name" if by is By.CLASS else "class", "calls"),
        *(f"own {unit}", "p90", "share %", f"total {unit}", "total p90", "total %"),
        *("kernels", "outputs", "weights", "temporary", "provider", "fused with", "fused into", "source"),
    )


def _text(found: ProfileReport, rows: list[ProfileRow], by: By, source: bool, limit: int, width: int) -> str:
    # Short runs in whole microseconds, which is what onnxruntime measures.
    unit, scale = ("ms", 1e3) if found.session.median >= _LONG_RUN else ("\N{MICRO SIGN}s", 1e6)
    headers = _headers(by, unit)
    shown = [_cells(row, scale, source) for row in rows[: limit or None]]
    optional = (
        *("fused into", "temporary", "total p90", "provider", "weights", "outputs", "calls", "kernels", "fused with"),
        *("p90", headers[1], f"total {unit}", "total %"),
    )
    table = Section("", (), headers, (*shown, _overhead(found, scale, len(headers))), optional=optional)
    left = len(rows) - len(shown)
    more = [f"… and {left:,} more rows (--limit 0 shows all)"] if left else []
    if source and not any(row.source for row in rows):
        more.append("note: the file has no source lines: not recorded by its exporter, or exported with --private")
    body = [table, Section("", (*more, "", *_tail(found, limit)))]
    head = as_text("", [Section("", (*_head(found), ""))], width)
    return f"{head}{flame_graph(found, width)}\n{as_text('', body, width)}"


def _head(found: ProfileReport) -> list[str]:
    settings = found.settings
    median, p90 = (f"{seconds * 1e3:.3g}" for seconds in (found.session.median, found.session.p90))
    times = f"{median} ms a run (median of {counted(settings.runs, 'run')}, p90 {p90})"
    inputs = ", ".join(f"{name} {shape}" for name, shape in settings.inputs.items())
    level = f", optimization {settings.optimization}" if settings.optimization else ""
    lines = [f"{found.file}", f"{times}, {found.runtime}{level}"]
    if inputs:
        lines.append(f"inputs: {inputs}{' (synthesized)' if settings.synthesized else ''}")
    return lines


def _tail(found: ProfileReport, limit: int) -> list[str]:
    added = f"{1 - found.unexplained:.1%}"
    lines = [
        f"all calls and the overhead add up to the session in each run; their medians add up to {added} of its median"
    ]
    if found.selected is not None:
        lines.append(f"selected: {counted(len(found.selected), 'call')} of {len(found.calls):,}")
    lines += [f"note: {note}" for note in found.notes]
    shown = found.findings[: limit or None]
    lines += [f"{finding.severity.value}: {finding.message}" for finding in shown]
    if len(shown) < len(found.findings):
        lines.append(f"… and {len(found.findings) - len(shown):,} more findings (--limit 0 shows all)")
    if shown:
        lines.append(f"next: {shown[0].fix}")
    return lines


def _cells(row: ProfileRow, scale: float, source: bool) -> tuple[Cell, ...]:
    memory = row.memory
    return (
        *(row.name, None if row.class_name == row.name else row.class_name, row.calls),
        *(*_times(row.own, scale), row.share * 100, *_times(row.total, scale), row.total_share * 100),
        *(row.nodes, _size(memory.output), _size(memory.parameter), _size(memory.temporary)),
        ", ".join(name.removesuffix("ExecutionProvider") for name in row.providers),
        *(_listed(row.fused_with), _listed(row.fused_into), _short_path(row.source) if source else None),
    )


def _overhead(found: ProfileReport, scale: float, columns: int) -> tuple[Cell, ...]:
    from modelexport.profiling import OVERHEAD_NAME

    cells = (OVERHEAD_NAME, None, None, *_times(found.overhead, scale), found.overhead_share * 100)
    return (*cells, *[None] * (columns - len(cells)))


def _times(timing: Timing, scale: float) -> tuple[Cell, Cell]:
    median, p90 = timing.median * scale, timing.p90 * scale
    return (median, p90) if scale == _MILLISECONDS else (round(median), round(p90))


def _size(amount: float | None) -> str | None:
    if amount is None:
        return None
    for unit in ("B", "kB", "MB"):
        if amount < _THOUSAND:
            return f"{amount:.3g} {unit}"
        amount /= _THOUSAND
    return f"{amount:.3g} GB"


def _listed(calls: tuple[str, ...]) -> str | None:
    if not calls:
        return None
    return f"{calls[0] or ROOT}{f' and {len(calls) - 1} more' if len(calls) > 1 else ''}"


def _short_path(source: str) -> str:
    """A source line without the folder that packages are installed in."""
    return source.rpartition("site-packages/")[2]


_CSV_HEADERS = (
    *("name", "class", "calls", "own_seconds", "own_p90", "share", "total_seconds", "total_p90", "total_share"),
    *("kernels", "activation_bytes", "parameter_bytes", "output_bytes", "temporary_bytes"),
    *("providers", "fused_with", "fused_into", "source"),
)


def _csv_row(row: ProfileRow) -> tuple[Cell, ...]:
    memory = row.memory
    return (
        *(row.name, row.class_name, row.calls, row.own.median, row.own.p90, row.share),
        *(row.total.median, row.total.p90, row.total_share, row.nodes),
        *(memory.activation, memory.parameter, memory.output, memory.temporary),
        *(" ".join(row.providers), " ".join(row.fused_with), " ".join(row.fused_into), row.source),
    )
