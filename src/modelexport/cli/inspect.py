"""`modelexport inspect`: the characteristics of a model, and the strategies that an export would try."""

from __future__ import annotations

import dataclasses

import msgspec

from modelexport.cli.model_options import ModelArgument, ModelLoading
from modelexport.cli.output import Format, Output, ReportFile, ReportFormatOption, json_text
from modelexport.cli.pages import Section, as_text


def inspect(
    *,
    model: ModelArgument,
    loading: ModelLoading,
    output_format: ReportFormatOption = None,
    report: ReportFile,
    out: Output,
) -> None:
    """Show the characteristics of a model, and the strategies that an export would try.

    Examples:

        modelexport inspect builtin:bert-tiny

        modelexport inspect my_package.models:make_net --format json
    """
    form = report.form(output_format, Format)
    report.check()
    from modelexport.strategies import describe_model

    with out.running_model():
        found = describe_model(model, loading.load(model, out).model)
    if form is Format.JSON:
        report.write(json_text(msgspec.to_builtins(found)), out)
        return
    facts = tuple(
        (name.replace("_", " "), _shown(value)) for name, value in dataclasses.asdict(found.characteristics).items()
    )
    candidates = tuple(
        (number, candidate.strategy, candidate.exporter, candidate.reason)
        for number, candidate in enumerate(found.candidates, start=1)
    )
    sections = [
        Section("Model", (), ("property", "value"), facts),
        Section("An export tries in this order", (), ("rank", "strategy", "exporter", "reason"), candidates),
    ]
    report.write(as_text(model, sections, report.width), out)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
