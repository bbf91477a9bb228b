"""`modelexport export`: a model from the command line to an ONNX file with its hierarchy."""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.status import Status

from modelexport.artifact import check_target, sidecar_path
from modelexport.cli.output import OutputFormat, message_console, print_json, printable, result_console
from modelexport.cli.report import markdown_report
from modelexport.errors import InputError
from modelexport.textfile import check_text_target, write_text

if TYPE_CHECKING:
    from modelexport.result import ExportResult, ProgressEvent
    from modelexport.sources.model_source import SourcedModel


def export(
    model: Annotated[str, typer.Argument(help="package.module:factory, or builtin:bert-tiny for the built-in model.")],
    output: Annotated[Path, typer.Argument(help="The .onnx file to write.")],
    strategy: Annotated[str, typer.Option(help="Where the evidence comes from: auto, fx or htp.")] = "auto",
    exporter: Annotated[
        str | None, typer.Option(help="Who makes the graph: dynamo, transformers or torchscript.")
    ] = None,
    opset: Annotated[int | None, typer.Option(help="The ONNX opset version.")] = None,
    optimize: Annotated[bool, typer.Option(help="Let torch optimize the graph.")] = True,
    input_shape: Annotated[
        list[str] | None, typer.Option(help="An input as name=1x16 or name=1x16:int64; repeat for more.")
    ] = None,
    inputs: Annotated[Path | None, typer.Option(help="An .npz file with the inputs by name.")] = None,
    torch_nn_exceptions: Annotated[
        str | None, typer.Option(help="torch.nn classes that show in tags: A,B,C, or all, or none.")
    ] = None,
    external_data: Annotated[
        bool | None, typer.Option(help="Weights in a file of their own; by default only where they need it.")
    ] = None,
    private: Annotated[bool, typer.Option("--private", help="Leave out source paths and stack traces.")] = False,
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

    A factory is called without arguments; it returns a torch.nn.Module, or a pair of one and its example inputs.

    Examples:

        modelexport export builtin:bert-tiny bert.onnx

        modelexport export my_package.models:make_net net.onnx --input-shape x=1x3x32x32
    """
    # Found out before anything is loaded: a wrong path should not cost the time of an export.
    target = check_target(output, force=force)
    taken = (target, sidecar_path(target), *(path for path in (fx_graph, jit_graph) if path is not None))
    report_target = check_text_target(report, force=force, taken=taken) if report is not None else None
    if inputs is not None and input_shape:
        raise InputError("--inputs and --input-shape both give example inputs: use one of them")
    from modelexport.export import export_model
    from modelexport.sources.model_source import load_model

    _silence_libraries()
    options: dict[str, Any] = {} if opset is None else {"opset_version": opset}
    # What a factory or a forward prints is no result of ours.
    with contextlib.redirect_stdout(sys.stderr), _Progress() as progress:
        sourced = load_model(model)
        result = export_model(
            sourced.model,
            _example_inputs(model, sourced, inputs, input_shape),
            output,
            strategy=strategy,
            exporter=exporter,
            optimize=optimize,
            torch_nn_exceptions=_exceptions(torch_nn_exceptions),
            private=private,
            external_data=external_data,
            overwrite=force,
            fx_graph_path=fx_graph,
            jit_graph_path=jit_graph,
            progress=progress,
            **options,
        )
    if report_target is not None:
        write_text(report_target, markdown_report(model, result))
    if output_format is OutputFormat.JSON:
        print_json(result.as_dict())
    else:
        _show(result)


def _silence_libraries() -> None:
    """The exporter logs and warns about its own inner life; what matters to the user reaches them as our errors."""
    for name in ("torch.onnx", "onnxscript", "onnx_ir"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def _exceptions(text: str | None) -> list[str] | str | None:
    if text is None or text in ("all", "none"):
        return text
    return [name.strip() for name in text.split(",") if name.strip()]


def _example_inputs(reference: str, sourced: SourcedModel, file: Path | None, shapes: list[str] | None) -> Any:
    from modelexport.sources.example_inputs import fill_shapes, read_arrays

    if file is not None:
        return read_arrays(file)
    if shapes:
        return fill_shapes(shapes)
    if sourced.example_inputs is not None:
        return sourced.example_inputs
    raise InputError(
        f"no example inputs for {reference}: give --input-shape name=1x16 or --inputs file.npz, "
        "or let the factory return a pair of the model and its inputs"
    )


class _Progress:
    """Shows the steps of an export as they begin and end."""

    def __init__(self) -> None:
        self._console = message_console()
        self._status: Status | None = None

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def __call__(self, event: ProgressEvent) -> None:
        self._stop()
        step = f"{event.number}/{event.total} {event.step:<9}"
        if event.finished:
            self._console.print(f"  {step} {event.seconds:6.2f} s  {event.detail}".rstrip(), markup=False)
        elif self._console.is_terminal:
            self._status = self._console.status(step)
            self._status.start()

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def _show(result: ExportResult) -> None:
    console = result_console()
    kinds = ", ".join(f"{count} {kind}" for kind, count in result.kinds.items())
    lines = [
        f"{len(result.document.nodes)} nodes, {result.coverage:.0%} with an owner ({kinds})",
        f"{len(result.document.modules)} modules, {len(result.document.calls)} calls, strategy {result.strategy}",
        *(f"wrote {path}" for path in result.files),
        f"next: modelexport tree {result.onnx_path}",
    ]
    for line in lines:
        console.print(printable(line), markup=False)
