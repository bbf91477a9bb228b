"""`modelexport verify`: every module of a file against PyTorch."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelexport.cli.model_options import InputOptions, ModelLoading, ModelOption, RunLimitOptions
from modelexport.cli.options import LimitOption, SelectOption
from modelexport.cli.output import FINDINGS, ROOT, Output, ReportFile, format_option, json_text
from modelexport.cli.pages import Section, as_csv, as_text
from modelexport.display import Cell
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.analysis import CallVerification, Difference, VerificationReport

_MEBIBYTE = 1 << 20
_TOLERANCE = re.compile(r"(?:(?P<kind>rtol|atol)=)?(?P<number>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)")


class VerificationFormat(enum.StrEnum):
    """The formats of a verification."""

    HUMAN = "human"
    JSON = "json"
    CSV = "csv"


def verify(
    *,
    file: Annotated[
        Path, typer.Argument(help="An ONNX file that modelexport wrote, with its sidecar.", show_default=False)
    ],
    model: ModelOption,
    loading: ModelLoading,
    inputs: InputOptions,
    limits: RunLimitOptions,
    select: SelectOption = None,
    tolerance: Annotated[
        str | None,
        typer.Option(
            help="By default rtol=1e-3,atol=1e-5, more for 16-bit and quantized files; a number alone is rtol."
        ),
    ] = None,
    probes: Annotated[
        int,
        typer.Option(min=0, help="Also compare the outputs at other sizes, and on so many inputs of other values."),
    ] = 0,
    memory: Annotated[
        int, typer.Option(min=1, help="MiB of module inputs and outputs to keep at a time; less means more runs.")
    ] = 1024,
    limit: LimitOption = None,
    output_format: Annotated[
        VerificationFormat | None,
        format_option("For people, for programs, or for spreadsheets."),
    ] = None,
    report: ReportFile,
    out: Output,
) -> None:
    """Compare every module of a file with PyTorch, and locate the source of errors.

    Each module call runs in onnxruntime on the inputs that the PyTorch module got. Its outputs differ from PyTorch's by
    the error that the module introduces; the same tensors of the full ONNX run differ from its outputs by the error
    that it inherits. The worst comes first, and --limit counts rows without findings. Exits with 1 when something is
    out of tolerance. The model must have the weights that the file was exported with.

    Examples:

        modelexport verify model.onnx --model builtin:bert-tiny

        modelexport verify net.onnx --model my_package.models:make_net --inputs inputs.npz --format csv

        modelexport verify bert.onnx --model builtin:bert-tiny --select class:BertLayer --tolerance rtol=1e-4,atol=1e-6
    """
    # Checked before anything is loaded: a wrong option should not cost the time of a run.
    if not file.is_file():
        raise InputError(f"{file} is not a file: give the path of an ONNX model")
    inputs.check()
    form = report.form(output_format, VerificationFormat)
    report.check(file)
    tolerances = _parse_tolerance(tolerance)
    from modelexport.verification import verify_modules

    with out.running_model() as activity:
        sourced = loading.load(model, out)
        found = verify_modules(
            file,
            sourced.model,
            inputs.choose(sourced, out, file),
            select=select,
            probes=probes,
            rtol=tolerances.get("rtol"),
            atol=tolerances.get("atol"),
            limits=limits.limits,
            memory_bytes=memory * _MEBIBYTE,
            progress=activity.count,
        )
    if form is VerificationFormat.JSON:
        report.write(json_text({**found.as_dict(), "file": str(file), "model": model}), out)
    elif form is VerificationFormat.CSV:
        report.write(as_csv(_CSV_HEADERS, [_csv_row(call) for call in found.calls]), out)
    else:
        report.write(_text(found, report.rows(limit), report.width), out)
    if not found.passed:
        raise typer.Exit(FINDINGS)


def _parse_tolerance(text: str | None) -> dict[str, float]:
    limits: dict[str, float] = {}
    for part in text.split(",") if text is not None else ():
        match = _TOLERANCE.fullmatch(part.strip())
        if match is None:
            raise InputError(f"--tolerance {text!r} cannot be parsed: write rtol=1e-3,atol=1e-5")
        limits[match["kind"] or "rtol"] = float(match["number"])
    return limits


_HEADERS = (
    *("verdict", "call", "class", "x tolerance", "SQNR dB"),
    *("introduced", "relative", "cosine", "inherited", "inherited relative", "inherited cosine", "why"),
)
_OPTIONAL = ("inherited relative", "inherited cosine", "relative", "class", "cosine")


def _text(found: VerificationReport, limit: int, width: int) -> str:
    rest = [call for call in found.calls if not call.is_finding]
    shown = rest[: limit or None]
    rows = tuple(_row(call) for call in (*found.findings, *shown))
    lines = []
    if len(shown) < len(rest):
        lines.append(f"… and {len(rest) - len(shown):,} more without findings (--limit 0 shows all)")
    lines.append("")
    if found.whole_run_error:
        lines.append(f"the whole model does not run in onnxruntime: {found.whole_run_error}")
    lines.append(found.summary())
    if found.check is not None:
        lines.append(f"on probes: {found.check}")
    coarse = [name for name in found.precisions if name not in ("float32", "float64")]
    if coarse and found.rtol is None and found.atol is None:
        lines.append(f"the tolerance is that of {', '.join(coarse)}, which the file computes with")
    if not found.passed and not found.findings and not found.whole_run_error:
        lines.append("nothing could be compared, so nothing is verified")
    table = Section("", (), _HEADERS, rows, optional=_OPTIONAL)
    return as_text("", [table, Section("", tuple(lines))], width)


def _row(call: CallVerification) -> tuple[Cell, ...]:
    judged = call.judged
    return (
        call.verdict.value.replace("_", " "),
        call.call or ROOT,
        call.class_name,
        None if judged is None else f"{judged.excess:.3g}",
        None if judged is None or judged.sqnr is None else f"{judged.sqnr:.1f}",
        *_errors(call.introduced),
        *_errors(call.inherited),
        _why(call),
    )


def _errors(difference: Difference | None) -> tuple[str | None, str | None, str | None]:
    if difference is None:
        return None, None, None
    cosine = None if difference.cosine is None else f"{difference.cosine:.6f}"
    return f"{difference.absolute:.2e}", f"{difference.relative:.2e}", cosine


def _why(call: CallVerification) -> str:
    differences = [d for tensor in call.tensors for d in (tensor.introduced, tensor.total) if d is not None]
    problems = dict.fromkeys(d.problem for d in differences if d.problem)
    notes = call.notes if call.is_finding else ()
    return "; ".join(text for text in (call.explanation, *problems, *notes) if text)


_CSV_KINDS = ("introduced", "inherited", "total")
_CSV_HEADERS = (
    "call",
    "tag",
    "class",
    "verdict",
    *(f"{kind}_{what}" for kind in _CSV_KINDS for what in ("absolute", "relative", "cosine", "excess", "sqnr")),
    "reason",
    "explanation",
    "source",
    "notes",
)


def _csv_row(call: CallVerification) -> tuple[Cell, ...]:
    numbers: list[Cell] = []
    for difference in (call.introduced, call.inherited, call.total):
        if difference is None:
            numbers += [None] * 5
        else:
            numbers += [difference.absolute, difference.relative, difference.cosine, difference.excess, difference.sqnr]
    source = None if call.source is None else call.source or ROOT
    notes = "; ".join(call.notes)
    return (
        call.call or ROOT,
        call.tag,
        call.class_name,
        call.verdict.value,
        *numbers,
        call.reason,
        call.explanation,
        source,
        notes,
    )
