"""`modelexport export --dynamic`: which axes may have other sizes, and what came of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelexport.cli.output import message_console, printable
from modelexport.errors import InputError

if TYPE_CHECKING:
    from modelexport.sources.dynamic_export import DynamicExport

AUTO = "auto"
_AXIS = re.compile(r"(?P<name>[^:=]+):(?P<axis>-?\d{1,9})=(?P<dimension>[^\W\d]\w*)")


def parse_dynamic(texts: Sequence[str]) -> str | list[tuple[str, int, str]]:
    """What ``--dynamic`` says: ``auto``, or each axis as the input's name, its number and the name of the dimension.

    Raises:
        InputError: One of them cannot be read, or axes are named beside ``auto``.
    """
    if AUTO in texts:
        if len(texts) > 1:
            raise InputError("--dynamic auto finds the axes: name none beside it")
        return AUTO
    found = []
    for text in texts:
        match = _AXIS.fullmatch(text)
        if match is None:
            raise InputError(
                f"--dynamic {text!r} cannot be read: write auto, or name:axis=dimension, as in input_ids:0=batch"
            )
        found.append((match["name"], int(match["axis"]), match["dimension"]))
    return found


def show_dynamic(exported: DynamicExport) -> None:
    """Which axes may have other sizes, and which may not though they were tried."""
    for note in exported.notes:
        message_console().print(printable(note), markup=False)
