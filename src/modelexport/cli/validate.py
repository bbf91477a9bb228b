"""`modelexport validate`: a model file and its hierarchy against the table of rules."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from modelexport.analysis.findings import Finding, Severity, ValidationReport
from modelexport.analysis.sarif import as_sarif
from modelexport.analysis.validation import validate as validate_file
from modelexport.cli.output import print_json, printable, result_console

_FINDINGS = 1
_STYLES = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


class ReportFormat(enum.StrEnum):
    """How findings are printed."""

    HUMAN = "human"
    JSON = "json"
    SARIF = "sarif"


def validate(
    file: Annotated[Path, typer.Argument(help="An ONNX file that modelexport wrote.")],
    check_contamination: Annotated[
        bool, typer.Option("--check-contamination", help="Judge the owner of every node too.")
    ] = False,
    baseline: Annotated[
        Path | None, typer.Option(help="A file that must have the same graph, our metadata aside.")
    ] = None,
    output_format: Annotated[
        ReportFormat, typer.Option("--format", help="For people, for programs, or SARIF for code hosts.")
    ] = ReportFormat.HUMAN,
) -> None:
    """Check a model file: ONNX compliance, tags, the three stores, coverage, hierarchy, boundaries.

    Exits with 1 when there are errors. docs/validation.md lists the rules.

    Examples:

        modelexport validate model.onnx

        modelexport validate model.onnx --check-contamination

        modelexport validate model.onnx --baseline plain.onnx --format sarif
    """
    report = validate_file(file, check_contamination=check_contamination, baseline=baseline)
    if output_format is ReportFormat.JSON:
        print_json(report.as_dict())
    elif output_format is ReportFormat.SARIF:
        print_json(as_sarif(report))
    else:
        _show(report)
    if not report.is_valid:
        raise typer.Exit(_FINDINGS)


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
