"""Options of commands that rewrite an ONNX file: the output file, and whether to replace files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from modelexport.cli.options import ForceOption
from modelexport.cli.output import make_folder
from modelexport.errors import InputError


@dataclasses.dataclass(frozen=True)
class WrittenFile:
    """The file that a command writes: a new one, or the one it read, which needs `force`."""

    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="The .onnx file to write. Without it, --force replaces FILE.",
            rich_help_panel="Output",
        ),
    ] = None
    force: ForceOption = False

    def check(self, file: Path) -> None:
        """Check, before any work is done, that `file` can be read and the result written.

        Raises:
            InputError: One of them cannot be.
        """
        from modelexport.storage import check_target

        if not file.is_file():
            raise InputError(f"{file} is not a file: give the path of an ONNX model")
        if self.output is None and not self.force:
            raise InputError(f"Cannot write {file}: it exists. Give another file with -o, or replace it with --force.")
        target = file if self.output is None else self.output
        make_folder(target.parent)
        check_target(target, force=self.force)
