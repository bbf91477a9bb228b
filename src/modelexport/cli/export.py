"""`modelexport export`: export a model to an ONNX file with its hierarchy."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modelexport.cli.export_summary import fixed_sizes, markdown_report, next_steps, stage_lines, summary_lines
from modelexport.cli.model_options import InputOptions, ModelArgument, ModelLoading
from modelexport.cli.options import ForceOption, TorchNnExceptionsOption, given_options, option
from modelexport.cli.output import FINDINGS, Format, FormatOption, Output, make_folder
from modelexport.errors import InputError
from modelexport.hierarchy import DEFAULT_CHECK_BYTES

if TYPE_CHECKING:
    from modelexport.exporting import ExportResult

_AUTO = "auto"


class CheckLevel(enum.StrEnum):
    """How much of the file is checked."""

    RUN = "run"
    LOAD = "load"
    OFF = "off"


@dataclasses.dataclass(frozen=True)
class OwnerOptions:
    """How owners are determined and shown in tags."""

    torch_nn_exceptions: TorchNnExceptionsOption = None
    simple_resolution: Annotated[
        bool,
        option(
            "Owners and tags",
            "Do not infer missing owners of nodes from data flow.",
            "--no-enable-advanced-resolution",
        ),
    ] = False
    advanced_resolution: Annotated[bool, typer.Option("--enable-advanced-resolution", hidden=True)] = False
    boundary: Annotated[
        list[str] | None,
        option(
            "Owners and tags",
            "A module boundary that this inference must not cross: a path, or class:Name; repeat for more.",
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class GraphOptions:
    """Which graph is written, where --stages has no choice."""

    strategy: Annotated[
        str,
        option(
            "Graph",
            "auto tries these in order: fx (torch.export, most precise), htp (TorchScript tracing), usage_based "
            "(compares values). docs/strategies.md helps to choose.",
        ),
    ] = _AUTO
    exporter: Annotated[str | None, option("Graph", "The exporter: dynamo, transformers or torchscript.")] = None
    dynamic: Annotated[
        list[str] | None, option("Graph", "Dynamic axes: auto, or name:axis=dimension; repeat for more.")
    ] = None
    torch_names: Annotated[
        bool,
        option(
            "Graph",
            "Keep the exporter's names: outputs are not named after the fields of the result, the cache of --stages "
            "not as runtimes expect it.",
            "--torch-names",
        ),
    ] = False
    allow_specialization: Annotated[
        bool,
        option(
            "Graph",
            "Fall back to tracing if control flow depends on input values: the file is correct only for inputs that "
            "take the same path as the example inputs.",
            "--allow-specialization",
        ),
    ] = False
    fx_graph: Annotated[Path | None, option("Output", "Write the traced FX graph to this file.")] = None
    jit_graph: Annotated[
        Path | None, option("Output", "Write the traced TorchScript graph to this file (strategy htp).")
    ] = None
    report: Annotated[Path | None, option("Output", "Also write a Markdown report to this file.")] = None

    def for_export(self) -> dict[str, Any]:
        """The options of `export_model`."""
        from modelexport.input_options import read_dynamic

        return {
            "strategy": self.strategy,
            "exporter": self.exporter,
            "dynamic": read_dynamic(self.dynamic),
            "allow_specialization": self.allow_specialization,
            "fx_graph_path": self.fx_graph,
            "jit_graph_path": self.jit_graph,
            **({} if self.torch_names else {"output_names": _AUTO}),
        }

    def refuse_stages(self) -> None:
        """Reject options that apply to one graph only.

        Raises:
            InputError: One of them was given.
        """
        if self.strategy not in (_AUTO, "fx"):
            raise InputError(f"--stages has no strategy {self.strategy}: fx exports the stages; omit --strategy")
        if self.exporter not in (None, "transformers"):
            raise InputError(f"--stages has no exporter {self.exporter}: transformers exports them; omit --exporter")
        others = [name for name in given_options(self) if name not in ("--strategy", "--exporter", "--torch-names")]
        if others:
            raise InputError(f"{others[0]} applies to one graph, but --stages writes several: omit one of the two")


def export(
    *,
    model: ModelArgument,
    output: Annotated[Path | None, typer.Argument(help="The .onnx file to write.", show_default=False)] = None,
    loading: ModelLoading,
    inputs: InputOptions,
    owners: OwnerOptions,
    graph: GraphOptions,
    opset: Annotated[int | None, option("Graph", "The ONNX opset version.")] = None,
    optimize: Annotated[bool, option("Graph", "Let torch optimize the graph.")] = True,
    check: Annotated[
        CheckLevel | None,
        option(
            "Check",
            "run (default): run the file in onnxruntime on the example inputs and compare it with PyTorch. A wrong "
            "file is exported in another way; if none is right, the exit code is 1. load: only load it.",
        ),
    ] = None,
    check_bytes: Annotated[
        int, option("Check", "Files with more bytes of weights are loaded and not run.", min=0)
    ] = DEFAULT_CHECK_BYTES,
    probes: Annotated[int, option("Check", "Also compare on so many inputs with other values.", min=0)] = 0,
    timeout: Annotated[
        float,
        option("Graph", "Seconds for all attempts: after that, nothing further is tried. inf: no limit.", min=1),
    ] = 1800,
    stages: Annotated[
        bool, option("Graph", "Export the stages of generate(), each to a file: OUTPUT_prefill.onnx, …", "--stages")
    ] = False,
    output_option: Annotated[Path | None, option("Output", "The same as OUTPUT.", "--output", "-o")] = None,
    external_data: Annotated[
        bool | None, option("Output", "Weights in a separate file; by default only if too large for one.")
    ] = None,
    private: Annotated[bool, option("Output", "Omit source paths and stack traces.", "--private")] = False,
    force: ForceOption = False,
    output_format: FormatOption = Format.HUMAN,
    out: Output,
) -> None:
    """Export a model to ONNX with every node attributed to the module call it came from.

    A factory returns a torch.nn.Module, or a pair of one and its example inputs.

    Examples:

        modelexport export builtin:bert-tiny bert.onnx

        modelexport export my_package.models:make_net net.onnx --input-shape x=1x3x32x32

        modelexport export my_package/models.py:make_net net.onnx --dynamic auto

        modelexport export ./my-bert classifier.onnx --task text-classification --input-text "The cat sat"

        modelexport export net.pt2 net.onnx

        modelexport export my_package.models:make_gpt2 gpt2.onnx --stages
    """
    if (output is None) == (output_option is None):
        raise InputError("give the .onnx file to write once, as OUTPUT or with -o (see --help)")
    path = output if output is not None else output_option
    assert path is not None
    if stages:
        graph.refuse_stages()
    # Checked before anything is loaded: a wrong path should not cost the time of an export.
    report = _check_files(path, graph, force=force, stages=stages)
    inputs.check()
    from modelexport.input_options import read_exceptions

    options: dict[str, Any] = {
        "optimize": optimize,
        "torch_nn_exceptions": read_exceptions(owners.torch_nn_exceptions),
        "advanced_resolution": not owners.simple_resolution,
        "boundaries": owners.boundary or (),
        "private": private,
        "external_data": external_data,
        "overwrite": force,
        "timeout": timeout,
        "check": check,
        "check_bytes": check_bytes,
        "probes": probes,
        **({} if opset is None else {"opset_version": opset}),
        **({"transformers_names": graph.torch_names} if stages else graph.for_export()),
    }
    from modelexport.exporting import export_model, export_stages

    with out.running_model() as activity:
        sourced = loading.load(model, out)
        example_inputs = inputs.choose(sourced, out)
        options["progress"] = activity.step
        if stages:
            results = export_stages(sourced.model, example_inputs, path, **options)
        else:
            results = {"": export_model(sourced.model, example_inputs, path, **options)}
    out.printed(attempt for result in results.values() for attempt in result.attempts)
    for note in dict.fromkeys(note for result in results.values() for note in result.notes):
        out.note(note)
    if stages:
        _show_stages(results, model, out, output_format)
        _exit_if_wrong(results)
        return
    result = results[""]
    if not graph.dynamic:
        out.note(fixed_sizes(result))
    if report is not None:
        from modelexport.storage import write_text

        write_text(report, markdown_report(model, result))
    if output_format is Format.JSON:
        out.json(result.as_dict())
    else:
        out.summary(summary_lines(result, model))
    _exit_if_wrong(results)


def _exit_if_wrong(results: Mapping[str, ExportResult]) -> None:
    if any(result.check.is_wrong for result in results.values()):
        raise typer.Exit(FINDINGS)


def _check_files(path: Path, graph: GraphOptions, *, force: bool, stages: bool) -> Path | None:
    """Check that all files can be written, and return the path of the report."""
    from modelexport.storage import check_target, check_text_target, sidecar_path

    files = [file for file in (graph.fx_graph, graph.jit_graph, graph.report) if file is not None]
    for file in (path, *files):
        make_folder(file.parent)
    target = check_target(path, force=force or stages, sidecar=not stages)
    if graph.report is None:
        return None
    return check_text_target(graph.report, force=force, taken=(target, sidecar_path(target), *files[:-1]))


def _show_stages(results: Mapping[str, ExportResult], model: str, out: Output, output_format: Format) -> None:
    if output_format is Format.JSON:
        from modelexport.exporting import stages_as_dict

        out.json(stages_as_dict(results))
        return
    lines = [line for name, result in results.items() for line in stage_lines(name, result)]
    out.summary([*lines, next_steps(list(results.values())[-1], model)[0]])
