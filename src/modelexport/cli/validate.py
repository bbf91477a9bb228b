"""`modelexport validate`: a model file and its hierarchy against the table of rules."""

from __future__ import annotations

import contextlib
import enum
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from modelexport.analysis.findings import Finding, Severity, ValidationReport
from modelexport.analysis.repairing import repair as repair_file
from modelexport.analysis.sarif import as_sarif
from modelexport.analysis.validation import validate as validate_file
from modelexport.cli.model_options import MODEL_HELP, ModelRequest, runs_file
from modelexport.cli.output import message_console, print_json, printable, result_console
from modelexport.cli.running import silence_libraries
from modelexport.errors import InputError

_FINDINGS = 1
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


class ReportFormat(enum.StrEnum):
    """How findings are printed."""

    HUMAN = "human"
    JSON = "json"
    SARIF = "sarif"


@runs_file
def validate(
    file: Annotated[Path, typer.Argument(help="An ONNX file that modelexport wrote.")],
    request: ModelRequest,
    check_contamination: Annotated[
        bool, typer.Option("--check-contamination", help="Judge the owner of every node too.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help=f"Judge owners by tensor values against this model: {MODEL_HELP}")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="A file that must have the same graph, our metadata aside.")
    ] = None,
    repair: Annotated[
        bool, typer.Option("--repair", help="First write missing stores of FILE from those that are there.")
    ] = False,
    output_format: Annotated[
        ReportFormat, typer.Option("--format", help="For people, for programs, or SARIF for code hosts.")
    ] = ReportFormat.HUMAN,
) -> None:
    """Check a model file: ONNX compliance, tags, the three stores, coverage, hierarchy, boundaries.

    Exits with 1 when there are errors. docs/validation.md lists the rules.

    Examples:

        modelexport validate model.onnx

        modelexport validate model.onnx --check-contamination --model my_package.models:make_net

        modelexport validate model.onnx --baseline plain.onnx --format sarif

        modelexport validate model.onnx --repair
    """
    _check_options(model, request, check_contamination)
    if repair:
        _repair(file)
    report = validate_file(file, check_contamination=check_contamination and model is None, baseline=baseline)
    if model is not None:
        report = _judged_with_model(report, file, model, request)
    if output_format is ReportFormat.JSON:
        print_json(report.as_dict())
    elif output_format is ReportFormat.SARIF:
        print_json(as_sarif(report))
    else:
        _show(report)
    if not report.is_valid:
        raise typer.Exit(_FINDINGS)


def _check_options(model: str | None, request: ModelRequest, contamination: bool) -> None:
    if model is not None and not contamination:
        raise InputError("--model is for --check-contamination: give both")
    if model is None and request.options:
        raise InputError(f"{' and '.join(request.options)} are for running a model: give --model too")
    request.check()


def _repair(file: Path) -> None:
    done = repair_file(file)
    console = message_console()
    console.print(printable(f"repaired from {done.origin}: {', '.join(map(str, done.files))}"), markup=False)
    for missing in done.missing:
        console.print(printable(f"  not known: {missing}"), markup=False)


def _judged_with_model(report: ValidationReport, file: Path, reference: str, request: ModelRequest) -> ValidationReport:
    from modelexport.verification.attributions import judge_attributions

    silence_libraries()
    # What a factory or a forward prints is no result of ours.
    with contextlib.redirect_stdout(sys.stderr):
        sourced = request.load(reference)
        inputs = request.choose_inputs(reference, sourced)
        return judge_attributions(file, sourced.model, inputs, report, limits=request.limits)


def _show(report: ValidationReport) -> None:
    console = result_console()
    for finding in report.findings:
        console.print(_line(finding))
        if finding.case is not None:
            case = finding.case
            console.print(Text(printable(f"    has: {', '.join(case.tags)}")))
            console.print(
                Text(
                    printable(f"    evidence supports: {', '.join(case.supported_tags) or 'none of the calls near it'}")
                )
            )
            console.print(Text(printable(f"    {case.kind}, {case.confidence:.2f} sure: {case.reason}"), style="dim"))
    for fix in dict.fromkeys(f"{finding.rule}: {finding.fix}" for finding in report.findings):
        console.print(Text(printable(f"fix {fix}"), style="dim"))
    for rule in report.rules:
        if rule.skipped:
            console.print(Text(printable(f"{rule.id} was not checked: {rule.skipped}"), style="dim"))
    checked = sum(not rule.skipped for rule in report.rules)
    verdict = "valid" if report.is_valid else f"{report.errors} errors"
    console.print(Text(printable(f"{report.nodes} nodes, {checked} rules, {len(report.findings)} findings: {verdict}")))


def _line(finding: Finding) -> Text:
    line = Text(finding.severity.value, style=_STYLES[finding.severity])
    line.append(f" {finding.rule} ", style="bold")
    if finding.case is not None:
        owner = finding.case.module or "(root)"
        line.append(printable(f"{finding.node} is owned by {owner}"), style="default")
    elif finding.node is not None:
        line.append(printable(f"{finding.node}: {finding.message}"), style="default")
    else:
        line.append(printable(finding.message), style="default")
    return line
