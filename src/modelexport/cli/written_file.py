"""Options of commands that rewrite an ONNX file: the output file, and whether to replace files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from modelexport.errors import InputError
from modelexport.storage import check_target

_PANEL = "Output"


class WrittenFile:
    """The file that a command writes: a new one, or the one it read.

    Args:
        output: The file; None replaces the input file, which needs `force`.
        force: Whether to replace existing files.
    """

    OPTIONS: ClassVar[Mapping[str, tuple[Any, Any]]] = {
        "output": (
            Annotated[
                Path | None,
                typer.Option(
                    "--output",
                    "-o",
                    help="The .onnx file to write. Without it, --force replaces FILE.",
                    rich_help_panel=_PANEL,
                ),
            ],
            None,
        ),
        "force": (
            Annotated[bool, typer.Option("--force", help="Replace existing files.", rich_help_panel=_PANEL)],
            False,
        ),
    }

    def __init__(self, *, output: Path | None, force: bool) -> None:
        self.path, self.force = output, force

    def check(self, file: Path) -> None:
        """Check, before any work is done, that `file` can be read and the result written.

        Raises:
            InputError: One of them cannot be.
        """
        if not file.is_file():
            raise InputError(f"{file} is not a file: give the path of an ONNX model")
        if self.path is None and not self.force:
            raise InputError(f"Cannot write {file}: it exists. Give another file with -o, or replace it with --force.")
        check_target(file if self.path is None else self.path, force=self.force)
