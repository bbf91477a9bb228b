"""`modelexport validate`: check a model file and its hierarchy against the validation rules."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from modelexport.cli.model_options import MODEL_HELP, InputOptions, ModelLoading, RunLimitOptions
from modelexport.cli.options import given_options
from modelexport.cli.output import FINDINGS, ROOT, Output, ReportFile, format_option, json_text, rendered
from modelexport.display import counted, printable
from modelexport.errors import InputError

if TYPE_CHECKING:
    from rich.text import Text

    from modelexport.analysis import Finding, ValidationReport

_STYLES = {"error": "red", "warning": "yellow", "note": "dim"}


class ValidationFormat(enum.StrEnum):
    """The formats of findings."""

    HUMAN = "human"
    JSON = "json"
    SARIF = "sarif"


def validate(
    *,
    file: Annotated[Path, typer.Argument(help="An ONNX file that modelexport wrote.", show_default=False)],
    loading: ModelLoading,
    inputs: InputOptions,
    limits: RunLimitOptions,
    check_contamination: Annotated[
        bool, typer.Option("--check-contamination", help="Also check the owner of every node.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help=f"Check owners by tensor values against this model: {MODEL_HELP}")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="A file that must have the same graph, apart from our metadata.")
    ] = None,
    output_format: Annotated[
        ValidationFormat | None,
        format_option("For people, for programs, or SARIF for code hosts."),
    ] = None,
    report: ReportFile,
    out: Output,
) -> None:
    """Check a file: ONNX validity, tags, the three stores, and the owner of each node.

    Exits with 1 when there are errors. docs/commands/validate.md lists the rules; modelexport repair restores missing
    stores.

    Examples:

        modelexport validate model.onnx

        modelexport validate model.onnx --check-contamination --model my_package.models:make_net

        modelexport validate model.onnx --baseline plain.onnx --format sarif
    """
    given = given_options(loading, inputs, limits)
    if model is not None and not check_contamination:
        raise InputError("--model is for --check-contamination: give both")
    if model is None and given:
        raise InputError(f"{' and '.join(given)} are for running a model: give --model too")
    inputs.check()
    form = report.form(output_format, ValidationFormat)
    report.check(file)
    from modelexport.analysis.validation import ValidatedFile, validate_opened

    with out.working(f"checking {file}"):
        subject = ValidatedFile(file, baseline, weights=model is not None)
        # Without a document there are no owners to check: the report then says that the rule was skipped.
        by_value = model is not None and subject.document is not None
        found = validate_opened(subject, check_contamination=check_contamination and not by_value)
    if model is not None and by_value:
        from modelexport.verification import validate_owners_by_value

        with out.running_model():
            sourced = loading.load(model, out)
            example = inputs.choose(sourced, out, file)
            found = validate_owners_by_value(subject, sourced.model, example, found, limits=limits.limits)
    report.write(render(found, form, report.width), out)
    if not found.is_valid:
        raise typer.Exit(FINDINGS)


def render(found: ValidationReport, form: ValidationFormat, width: int) -> str:
    """A validation as text in one of the formats."""
    if form is ValidationFormat.JSON:
        return json_text(found.as_dict())
    if form is ValidationFormat.SARIF:
        from modelexport.analysis.validation import as_sarif

        return json_text(as_sarif(found))
    from rich.console import Group

    return rendered(Group(*_lines(found)), width)


def _lines(found: ValidationReport) -> Iterator[Text]:
    for finding in found.findings:
        yield _finding(finding)
        if finding.case is not None:
            case = finding.case
            yield _text(f"    has: {', '.join(case.tags)}")
            yield _text(f"    evidence supports: {', '.join(case.supported_tags) or 'none of the calls near it'}")
            yield _text(f"    {case.kind}, confidence {case.confidence:.2f}: {case.reason}", "dim")
    for fix in dict.fromkeys(f"{finding.rule}: {finding.fix}" for finding in found.findings):
        yield _text(f"fix {fix}", "dim")
    for rule in found.rules:
        if rule.skipped:
            yield _text(f"{rule.id} was not checked: {rule.skipped}", "dim")
    checked = sum(not rule.skipped for rule in found.rules)
    verdict = "valid" if found.is_valid else counted(found.errors, "error")
    counts = (counted(found.nodes, "node"), counted(checked, "rule"), counted(len(found.findings), "finding"))
    yield _text(f"{', '.join(counts)}: {verdict}")


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(printable(text), style=style, overflow="fold")


def _finding(finding: Finding) -> Text:
    line = _text(finding.severity.value, _STYLES[finding.severity.value])
    line.append(f" {finding.rule} ", style="bold")
    if finding.case is not None:
        line.append(printable(f"{finding.node} is owned by {finding.case.module or ROOT}"), style="default")
    elif finding.node is not None:
        line.append(printable(f"{finding.node}: {finding.message}"), style="default")
    else:
        line.append(printable(finding.message), style="default")
    return line
