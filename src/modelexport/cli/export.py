"""`modelexport export`: export a model to an ONNX file with its hierarchy."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelexport.cli.export_summary import markdown_report, next_steps, stage_lines, summary_lines
from modelexport.cli.model_options import InputOptions, ModelArgument, ModelLoading
from modelexport.cli.options import TorchNnExceptionsOption, parse_exceptions
from modelexport.cli.output import Format, FormatOption, Output
from modelexport.errors import InputError
from modelexport.storage import check_target, check_text_target, sidecar_path, write_text

if TYPE_CHECKING:
    from modelexport.exporting import ExportResult

_AUTO = "auto"
_AXIS = re.compile(r"(?P<name>[^:=]+):(?P<axis>-?\d{1,9})=(?P<dimension>[^\W\d]\w*)")
_GRAPH = "Graph"
_TAGS = "Owners and tags"
_FILES = "Output"


def export(
    *,
    model: ModelArgument,
    output: Annotated[Path | None, typer.Argument(help="The .onnx file to write.", show_default=False)] = None,
    loading: ModelLoading,
    inputs: InputOptions,
    strategy: Annotated[
        str,
        typer.Option(help="How owners are determined: auto, fx, htp or usage_based.", rich_help_panel=_TAGS),
    ] = "auto",
    torch_nn_exceptions: TorchNnExceptionsOption = None,
    simple_resolution: Annotated[
        bool,
        typer.Option(
            "--no-enable-advanced-resolution",
            help="Do not infer missing owners of nodes from data flow.",
            rich_help_panel=_TAGS,
        ),
    ] = False,
    advanced_resolution: Annotated[bool, typer.Option("--enable-advanced-resolution", hidden=True)] = False,
    boundary: Annotated[
        list[str] | None,
        typer.Option(
            help="A module boundary that this inference must not cross: a path, or class:Name; repeat for more.",
            rich_help_panel=_TAGS,
        ),
    ] = None,
    exporter: Annotated[
        str | None,
        typer.Option(help="The exporter: dynamo, transformers or torchscript.", rich_help_panel=_GRAPH),
    ] = None,
    opset: Annotated[int | None, typer.Option(help="The ONNX opset version.", rich_help_panel=_GRAPH)] = None,
    optimize: Annotated[bool, typer.Option(help="Let torch optimize the graph.", rich_help_panel=_GRAPH)] = True,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(
            help="Dynamic axes: auto, or name:axis=dimension; repeat for more.",
            rich_help_panel=_GRAPH,
        ),
    ] = None,
    allow_specialization: Annotated[
        bool,
        typer.Option(
            "--allow-specialization",
            help="Fall back to tracing if control flow depends on input values: the file is correct only for inputs "
            "that take the same path as the example inputs.",
            rich_help_panel=_GRAPH,
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=1,
            help="Seconds for all attempts together: after that, nothing further is tried. inf: no limit.",
            rich_help_panel=_GRAPH,
        ),
    ] = 1800,
    stages: Annotated[
        bool,
        typer.Option(
            "--stages",
            help="Export the stages of generate(), each to a file: OUTPUT_prefill.onnx, …",
            rich_help_panel=_GRAPH,
        ),
    ] = False,
    output_option: Annotated[
        Path | None, typer.Option("--output", "-o", help="The same as OUTPUT.", rich_help_panel=_FILES)
    ] = None,
    external_data: Annotated[
        bool | None,
        typer.Option(
            help="Weights in a separate file; by default only if too large for one.",
            rich_help_panel=_FILES,
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="Omit source paths and stack traces.", rich_help_panel=_FILES)
    ] = False,
    fx_graph: Annotated[
        Path | None, typer.Option(help="Write the traced FX graph to this file.", rich_help_panel=_FILES)
    ] = None,
    jit_graph: Annotated[
        Path | None,
        typer.Option(help="Write the traced TorchScript graph to this file (strategy htp).", rich_help_panel=_FILES),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Also write a Markdown report to this file.", rich_help_panel=_FILES)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.", rich_help_panel=_FILES)] = False,
    output_format: FormatOption = Format.HUMAN,
    out: Output,
) -> None:
    """Export a model to ONNX with every node attributed to the module call it came from.

    A factory returns a torch.nn.Module, or a pair of one and its example inputs.

    Examples:

        modelexport export builtin:bert-tiny bert.onnx

        modelexport export my_package.models:make_net net.onnx --input-shape x=1x3x32x32

        modelexport export my_package.models:make_net net.onnx --dynamic auto

        modelexport export ./my-bert classifier.onnx --task text-classification --input-text "The cat sat"

        modelexport export net.pt2 net.onnx

        modelexport export my_package.models:make_gpt2 gpt2.onnx --stages
    """
    if (output is None) == (output_option is None):
        raise InputError("give the .onnx file to write once, as OUTPUT or with -o (see --help)")
    path = output if output is not None else output_option
    assert path is not None
    # Checked before anything is loaded: a wrong path should not cost the time of an export.
    target = check_target(path, force=force or stages, sidecar=not stages)
    if stages:
        others = {"--dynamic": dynamic, "--fx-graph": fx_graph, "--jit-graph": jit_graph, "--report": report}
        _check_stage_options(strategy, exporter, {**others, "--allow-specialization": allow_specialization})
    taken = (target, sidecar_path(target), *(file for file in (fx_graph, jit_graph) if file is not None))
    report_target = check_text_target(report, force=force, taken=taken) if report is not None else None
    inputs.check()
    options: dict[str, Any] = {
        "optimize": optimize,
        "torch_nn_exceptions": parse_exceptions(torch_nn_exceptions),
        "advanced_resolution": not simple_resolution,
        "boundaries": boundary or (),
        "private": private,
        "external_data": external_data,
        "overwrite": force,
        "timeout": timeout,
        **({} if opset is None else {"opset_version": opset}),
    }
    if not stages:
        options |= {"strategy": strategy, "exporter": exporter, "dynamic": _parse_dynamic(dynamic)}
        options |= {"fx_graph_path": fx_graph, "jit_graph_path": jit_graph}
        options |= {"allow_specialization": allow_specialization}
    from modelexport.exporting import export_model, export_stages

    with out.running_model() as activity:
        sourced = loading.load(model, out)
        example_inputs = inputs.choose(sourced, out)
        options["progress"] = activity.step
        if stages:
            results = export_stages(sourced.model, example_inputs, path, **options)
        else:
            results = {"": export_model(sourced.model, example_inputs, path, **options)}
    for note in dict.fromkeys(note for result in results.values() for note in result.notes):
        out.note(note)
    if stages:
        _show_stages(results, model, out, output_format)
        return
    result = results[""]
    if report_target is not None:
        write_text(report_target, markdown_report(model, result))
    if output_format is Format.JSON:
        out.json(result.as_dict())
    else:
        out.summary(summary_lines(result, model))


def _show_stages(results: Mapping[str, ExportResult], model: str, out: Output, output_format: Format) -> None:
    if output_format is Format.JSON:
        from modelexport.exporting import stages_as_dict

        out.json(stages_as_dict(results))
        return
    lines = [line for name, result in results.items() for line in stage_lines(name, result)]
    out.summary([*lines, next_steps(list(results.values())[-1], model)[0]])


def _check_stage_options(strategy: str, exporter: str | None, others: Mapping[str, object]) -> None:
    """Reject options that apply to one graph only.

    Raises:
        InputError: One of them was given.
    """
    if strategy not in ("auto", "fx"):
        raise InputError(f"--stages has no strategy {strategy}: the stages are exported with fx; omit --strategy")
    if exporter not in (None, "transformers"):
        raise InputError(f"--stages has no exporter {exporter}: transformers exports them; omit --exporter")
    given = [name for name, value in others.items() if value]
    if given:
        raise InputError(f"{given[0]} applies to one graph, but --stages writes several: omit one of the two")


def _parse_dynamic(texts: Sequence[str] | None) -> str | dict[str, dict[int, str]] | None:
    """The value of ``--dynamic`` for `export_model`; None if it is not given.

    Raises:
        InputError: A value cannot be parsed, an axis is given twice, or axes are given together with ``auto``.
    """
    if not texts:
        return None
    if _AUTO in texts:
        if len(texts) > 1:
            raise InputError("--dynamic auto determines the axes: give no others")
        return _AUTO
    found: dict[str, dict[int, str]] = {}
    for text in texts:
        match = _AXIS.fullmatch(text)
        if match is None:
            raise InputError(
                f"--dynamic {text!r} cannot be read: write auto, or name:axis=dimension, as in input_ids:0=batch"
            )
        axes = found.setdefault(match["name"], {})
        if int(match["axis"]) in axes:
            raise InputError(f"--dynamic {text!r}: axis {match['axis']} of {match['name']} is given twice")
        axes[int(match["axis"])] = match["dimension"]
    return found
