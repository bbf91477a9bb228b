"""`modelexport tag`: add the hierarchy to an ONNX file that another tool exported."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from modelexport.cli.export_summary import summary_lines
from modelexport.cli.model_options import InputOptions, ModelLoading, ModelOption, RunLimitOptions
from modelexport.cli.options import TorchNnExceptionsOption
from modelexport.cli.output import Format, FormatOption, Output
from modelexport.cli.written_file import WrittenFile


def tag(
    *,
    file: Annotated[Path, typer.Argument(help="An ONNX file, from any exporter.", show_default=False)],
    model: ModelOption,
    loading: ModelLoading,
    inputs: InputOptions,
    limits: RunLimitOptions,
    torch_nn_exceptions: TorchNnExceptionsOption = None,
    output_format: FormatOption = Format.HUMAN,
    target: WrittenFile,
    out: Output,
) -> None:
    """Add the hierarchy to an ONNX file that another tool exported.

    Runs the file and the model once each: every node is attributed to the module call that computes the same values.
    Nothing else in the file changes. The model must have the weights that the file was exported with.

    Examples:

        modelexport tag plain.onnx --model my_package.models:make_net -o tagged.onnx

        modelexport tag optimized.onnx --model builtin:bert-tiny --force
    """
    # Checked before anything is loaded: a wrong path should not cost the time of a run.
    target.check(file)
    inputs.check()
    from modelexport.exporting import tag_file
    from modelexport.input_options import read_exceptions

    with out.running_model() as activity:
        sourced = loading.load(model, out)
        result = tag_file(
            file,
            sourced.model,
            inputs.choose(sourced, out, file),
            target.output,
            torch_nn_exceptions=read_exceptions(torch_nn_exceptions),
            overwrite=target.force,
            limits=limits.limits,
            progress=activity.step,
        )
    if output_format is Format.JSON:
        out.json(result.as_dict())
    else:
        out.summary(summary_lines(result, model))
