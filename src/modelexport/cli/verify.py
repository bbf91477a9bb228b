"""`modelexport verify`: every module of a file against PyTorch."""

from __future__ import annotations

import contextlib
import enum
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.status import Status

from modelexport.cli.model_options import ModelOption, ModelRequest, runs_file
from modelexport.cli.output import message_console, print_json, printable, result_console
from modelexport.cli.running import silence_libraries
from modelexport.cli.tables import Cell, aligned, as_csv
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.verification.difference import Difference
    from modelexport.verification.report import CallVerification, VerificationReport

_FINDINGS = 1
_MEBIBYTE = 1 << 20
_SECONDS_BETWEEN_LINES = 5.0
_TOLERANCE = re.compile(r"(?:(?P<kind>rtol|atol)=)?(?P<number>[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?)")
_ROOT = "(root)"


class VerificationFormat(enum.StrEnum):
    """How a verification is printed."""

    HUMAN = "human"
    JSON = "json"
    CSV = "csv"


@runs_file
def verify(
    file: Annotated[Path, typer.Argument(help="An ONNX file that modelexport wrote, with its sidecar.")],
    model: ModelOption,
    request: ModelRequest,
    select: Annotated[
        str | None, typer.Option(help="Only the calls that a selector picks (docs/selectors.md); by default all.")
    ] = None,
    tolerance: Annotated[
        str | None,
        typer.Option(help="rtol=1e-3,atol=1e-5 is the default, more for 16-bit floats; a number alone is rtol."),
    ] = None,
    memory: Annotated[
        int, typer.Option(min=1, help="MiB of module inputs and results to hold at a time; less means more runs.")
    ] = 1024,
    limit: Annotated[int, typer.Option(min=0, help="Rows for people beside the findings; 0 for all.")] = 20,
    output_format: Annotated[
        VerificationFormat, typer.Option("--format", help="For people, for programs, or for spreadsheets.")
    ] = VerificationFormat.HUMAN,
) -> None:
    """Compare every module of an exported file with PyTorch, and say where errors come from.

    Each module call runs in onnxruntime on the inputs that the PyTorch module really got. What it gives, against what
    the module really returned, is the error it introduces; what the whole ONNX run has at the same place, against that,
    is the error it inherits. The worst comes first. Exits with 1 when something is out of tolerance. The model must
    have the weights that the file was exported with.

    Examples:

        modelexport verify model.onnx --model builtin:bert-tiny

        modelexport verify net.onnx --model my_package.models:make_net --inputs inputs.npz --format csv

        modelexport verify bert.onnx --model builtin:bert-tiny --select class:BertLayer --tolerance rtol=1e-4,atol=1e-6
    """
    # Found out before anything is loaded: a wrong option should not cost the time of a run.
    if not file.is_file():
        raise InputError(f"{file} is not a file: give the path of an ONNX model")
    request.check()
    tolerances = _parse_tolerance(tolerance)
    from modelexport.verification.modules import verify_modules

    silence_libraries()
    # What a factory or a forward prints is no result of ours.
    with contextlib.redirect_stdout(sys.stderr), _Progress() as progress:
        sourced = request.load(model)
        report = verify_modules(
            file,
            sourced.model,
            request.choose_inputs(model, sourced),
            select=select,
            rtol=tolerances.get("rtol"),
            atol=tolerances.get("atol"),
            memory_bytes=memory * _MEBIBYTE,
            limits=request.limits,
            progress=progress,
        )
    if output_format is VerificationFormat.JSON:
        print_json({**report.as_dict(), "file": str(file), "model": model})
    elif output_format is VerificationFormat.CSV:
        sys.stdout.write(as_csv(_CSV_HEADERS, [_csv_row(call) for call in report.calls]))
    else:
        _show(report, limit)
    if not report.passed:
        raise typer.Exit(_FINDINGS)


def _parse_tolerance(text: str | None) -> dict[str, float]:
    tolerances: dict[str, float] = {}
    for part in text.split(",") if text is not None else ():
        match = _TOLERANCE.fullmatch(part.strip())
        if match is None:
            raise InputError(f"--tolerance {text!r} cannot be read: write rtol=1e-3,atol=1e-5")
        tolerances[match["kind"] or "rtol"] = float(match["number"])
    return tolerances


class _Progress:
    """Says which call is being compared: in place on a terminal, now and then a line elsewhere."""

    def __init__(self) -> None:
        self._console = message_console()
        self._status: Status | None = None
        self._start: float | None = None
        self._last = time.monotonic()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, done: int, total: int, call: str) -> None:
        now = time.monotonic()
        # Loading the model is not counted: it is over when the first call is compared.
        self._start = now if self._start is None else self._start
        if done == total:
            self.__exit__()
            self._console.print(f"  {total} calls compared in {now - self._start:.1f} s", markup=False)
        elif self._console.is_terminal:
            if self._status is None:
                self._status = self._console.status("")
                self._status.start()
            # The name comes from a file: no markup in it.
            self._status.update(f"{done}/{total} {printable(call or _ROOT)}".replace("[", "\\["))
        elif now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            self._console.print(printable(f"  {done}/{total} {call or _ROOT}"), markup=False)


_ERRORS = ("relative", "cosine")
_HEADERS = ("verdict", "call", "class", "x tolerance", "introduced", *_ERRORS, "inherited", *_ERRORS, "")


def _show(report: VerificationReport, limit: int) -> None:
    console = result_console()
    rest = [call for call in report.calls if not call.is_finding]
    shown = rest if limit == 0 else rest[:limit]
    for line in aligned(_HEADERS, [_row(call) for call in (*report.findings, *shown)]):
        console.print(line, markup=False)
    if len(shown) < len(rest):
        console.print(f"… and {len(rest) - len(shown)} more without findings (--limit 0 shows all)", markup=False)
    console.print("", markup=False)
    if report.whole_run_error:
        text = f"the whole model does not run in onnxruntime: {report.whole_run_error}"
        console.print(printable(text), markup=False)
    console.print(printable(report.summary()), markup=False)
    if not report.passed and not report.findings and not report.whole_run_error:
        console.print("nothing could be compared, so nothing is proven", markup=False)


def _row(call: CallVerification) -> tuple[Cell, ...]:
    judged = call.judged
    return (
        call.verdict.value.replace("_", " "),
        call.call or _ROOT,
        call.class_name,
        "-" if judged is None else f"{judged.excess:.3g}",
        *_errors(call.introduced),
        *_errors(call.inherited),
        _why(call),
    )


def _errors(difference: Difference | None) -> tuple[str, str, str]:
    if difference is None:
        return "-", "-", "-"
    cosine = "-" if difference.cosine is None else f"{difference.cosine:.6f}"
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
    *(f"{kind}_{what}" for kind in _CSV_KINDS for what in ("absolute", "relative", "cosine", "excess")),
    "reason",
    "explanation",
    "source",
    "notes",
)


def _csv_row(call: CallVerification) -> tuple[Cell, ...]:
    numbers: list[Cell] = []
    for difference in (call.introduced, call.inherited, call.total):
        if difference is None:
            numbers += [None, None, None, None]
        else:
            numbers += [difference.absolute, difference.relative, difference.cosine, difference.excess]
    source = None if call.source is None else call.source or _ROOT
    notes = "; ".join(call.notes)
    return (
        call.call or _ROOT,
        call.tag,
        call.class_name,
        call.verdict.value,
        *numbers,
        call.reason,
        call.explanation,
        source,
        notes,
    )
