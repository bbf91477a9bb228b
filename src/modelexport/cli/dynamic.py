"""`modelexport export --dynamic`: which axes may have other sizes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from modelexport.errors import InputError

AUTO = "auto"
_AXIS = re.compile(r"(?P<name>[^:=]+):(?P<axis>-?\d{1,9})=(?P<dimension>[^\W\d]\w*)")


def parse_dynamic(texts: Sequence[str] | None) -> str | dict[str, dict[int, str]] | None:
    """What ``--dynamic`` says, as `export_model` takes it; None where it is not given.

    Raises:
        InputError: One of them cannot be read or says again what another has said, or axes are named beside ``auto``.
    """
    if not texts:
        return None
    if AUTO in texts:
        if len(texts) > 1:
            raise InputError("--dynamic auto finds the axes: name none beside it")
        return AUTO
    found: dict[str, dict[int, str]] = {}
    for text in texts:
        match = _AXIS.fullmatch(text)
        if match is None:
            raise InputError(
                f"--dynamic {text!r} cannot be read: write auto, or name:axis=dimension, as in input_ids:0=batch"
            )
        axes = found.setdefault(match["name"], {})
        if int(match["axis"]) in axes:
            raise InputError(f"--dynamic {text!r}: axis {match['axis']} of {match['name']} is named twice")
        axes[int(match["axis"])] = match["dimension"]
    return found
