"""`modelexport export`: a model from the command line to an ONNX file with its hierarchy."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelexport.artifact import check_target, sidecar_path
from modelexport.cli.dynamic import parse_dynamic
from modelexport.cli.model_options import ModelArgument, ModelRequest, runs_model
from modelexport.cli.output import OutputFormat, message_console, print_json, printable
from modelexport.cli.report import markdown_report
from modelexport.cli.running import Progress, parse_exceptions, show_result, silence_libraries
from modelexport.cli.stages import check_stage_options, show_stages
from modelexport.textfile import check_text_target, write_text

if TYPE_CHECKING:
    from modelexport.result import ExportResult


@runs_model
def export(
    model: ModelArgument,
    output: Annotated[Path, typer.Argument(help="The .onnx file to write.")],
    request: ModelRequest,
    strategy: Annotated[
        str, typer.Option(help="Where the evidence comes from: auto, fx, htp or usage_based.")
    ] = "auto",
    exporter: Annotated[
        str | None, typer.Option(help="Who makes the graph: dynamo, transformers or torchscript.")
    ] = None,
    opset: Annotated[int | None, typer.Option(help="The ONNX opset version.")] = None,
    optimize: Annotated[bool, typer.Option(help="Let torch optimize the graph.")] = True,
    dynamic: Annotated[
        list[str] | None,
        typer.Option(help="Axes that may have other sizes: auto, or name:axis=dimension; repeat for more."),
    ] = None,
    allow_specialization: Annotated[
        bool,
        typer.Option(
            "--allow-specialization",
            help="Fall back to tracing where the model depends on values of its inputs: the file is right only for "
            "inputs that take the same path as the example inputs.",
        ),
    ] = False,
    torch_nn_exceptions: Annotated[
        str | None, typer.Option(help="torch.nn classes that show in tags: A,B,C, or all, or none.")
    ] = None,
    advanced_resolution: Annotated[
        bool,
        typer.Option(
            "--enable-advanced-resolution/--no-enable-advanced-resolution",
            help="Reason from data flow about nodes that no module call is recorded for.",
        ),
    ] = True,
    boundary: Annotated[
        list[str] | None,
        typer.Option(help="A module that this must not cross: its path, or class:Name; repeat for more."),
    ] = None,
    external_data: Annotated[
        bool | None, typer.Option(help="Weights in a file of their own; by default only where they need it.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Leave out source paths and stack traces.")] = False,
    stages: Annotated[
        bool,
        typer.Option("--stages", help="Export what generate runs, each stage to a file: OUTPUT_prefill.onnx, …"),
    ] = False,
    fx_graph: Annotated[Path | None, typer.Option(help="Write the traced FX graph to this file.")] = None,
    jit_graph: Annotated[
        Path | None, typer.Option(help="Write the traced TorchScript graph to this file (strategy htp).")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Write a Markdown report to this file.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing output.")] = False,
    output_format: Annotated[
        OutputFormat, typer.Option("--format", help="For people or for programs.")
    ] = OutputFormat.HUMAN,
) -> None:
    """Export a model to ONNX with every node attributed to the module call it came from.

    A factory returns a torch.nn.Module, or a pair of one and its example inputs. docs/models.md tells all that MODEL
    can be.

    Examples:

        modelexport export builtin:bert-tiny bert.onnx

        modelexport export my_package.models:make_net net.onnx --input-shape x=1x3x32x32

        modelexport export my_package.models:make_net net.onnx --dynamic auto

        modelexport export ./my-bert classifier.onnx --task text-classification --input-text "The cat sat"

        modelexport export net.pt2 net.onnx

        modelexport export my_package.models:make_gpt2 gpt2.onnx --stages
    """
    # Found out before anything is loaded: a wrong path should not cost the time of an export.
    target = check_target(output, force=force or stages, sidecar=not stages)
    if stages:
        others = {"--dynamic": dynamic, "--fx-graph": fx_graph, "--jit-graph": jit_graph, "--report": report}
        check_stage_options(strategy, exporter, {**others, "--allow-specialization": allow_specialization})
    taken = (target, sidecar_path(target), *(path for path in (fx_graph, jit_graph) if path is not None))
    report_target = check_text_target(report, force=force, taken=taken) if report is not None else None
    request.check()
    options: dict[str, Any] = {
        "optimize": optimize,
        "torch_nn_exceptions": parse_exceptions(torch_nn_exceptions),
        "advanced_resolution": advanced_resolution,
        "boundaries": boundary or (),
        "private": private,
        "external_data": external_data,
        "overwrite": force,
        **({} if opset is None else {"opset_version": opset}),
    }
    if not stages:
        options |= {"strategy": strategy, "exporter": exporter, "dynamic": parse_dynamic(dynamic)}
        options |= {"fx_graph_path": fx_graph, "jit_graph_path": jit_graph}
        options |= {"allow_specialization": allow_specialization}
    results = _export(model, request, output, options, stages=stages)
    for note in dict.fromkeys(note for result in results.values() for note in result.notes):
        message_console().print(printable(note), markup=False)
    if stages:
        show_stages(results, output_format)
        return
    (result,) = results.values()
    if report_target is not None:
        write_text(report_target, markdown_report(model, result))
    if output_format is OutputFormat.JSON:
        print_json(result.as_dict())
    else:
        show_result(result)


def _export(
    model: str, request: ModelRequest, output: Path, options: Mapping[str, Any], *, stages: bool
) -> Mapping[str, ExportResult]:
    """The result of each stage by its name; of the whole model under no name."""
    from modelexport.export import export_model
    from modelexport.stages import export_stages

    silence_libraries()
    # What a factory or a forward prints is no result of ours.
    with contextlib.redirect_stdout(sys.stderr), Progress() as progress:
        sourced = request.load(model)
        example_inputs = request.choose_inputs(model, sourced)
        if stages:
            return export_stages(sourced.model, example_inputs, output, progress=progress, **options)
        return {"": export_model(sourced.model, example_inputs, output, progress=progress, **options)}
