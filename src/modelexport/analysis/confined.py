"""What onnx's checker and shape inference say of a file, asked in a process of their own.

They are C++, and there are files that crash them, or keep them busy without end. Here such a file ends that process
alone, and its end is what is found.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import onnx

from modelexport.analysis import confined_worker
from modelexport.analysis.dataflow import without_large_weights
from modelexport.errors import ContractError

# What the process may take: so much, and so much more for each byte it is given.
_MEMORY_BYTES = 2**29
_MEMORY_FOR_A_BYTE = 10
_CPU_SECONDS = 10
_BYTES_IN_A_CPU_SECOND = 2**20
# On a machine that does other things too; and a process that waits for something uses no seconds of its own.
_WALL_FOR_A_CPU_SECOND = 6


@dataclasses.dataclass(frozen=True)
class Examination:
    """What was said of a file.

    Attributes:
        checker: What the ONNX checker does not accept, in words; empty where it accepts the file.
        shapes: The same of shape inference.
        inferred: The graph's tensors with the types that inference found; None where it found none.
    """

    checker: str
    shapes: str
    inferred: onnx.GraphProto | None


def examine(path: Path, model: onnx.ModelProto) -> Examination:
    """Let the checker and shape inference look at a file that was read and found to be safe to walk.

    Args:
        path: The file.
        model: The model in it; the content of large weights is not needed.
    """
    try:
        light = without_large_weights(model).SerializeToString()
    except ValueError as error:  # more than protobuf writes, or a field that it reads and does not write
        light = b""
        unwritable = f"the model cannot be handed to shape inference: {error}"
    else:
        unwritable = ""
    size = path.stat().st_size + len(light)
    seconds = _CPU_SECONDS + size // _BYTES_IN_A_CPU_SECOND
    answers, end = _ask(path, light, _MEMORY_BYTES + _MEMORY_FOR_A_BYTE * size, seconds)
    if "started" not in answers:
        raise ContractError(f"the process for the ONNX checker cannot be started: {end}")
    checker, shapes = (answers[step][0] if step in answers else end for step in ("checker", "shapes"))
    content = answers["types"][1] if "types" in answers else b""
    return Examination(checker, unwritable or shapes, onnx.GraphProto.FromString(content) if content else None)


def _ask(path: Path, light: bytes, memory: int, seconds: int) -> tuple[dict[str, tuple[str, bytes]], str]:
    """The problem and the content that each step answered with, and how the process ended where it did too soon."""
    command = [sys.executable, "-P", confined_worker.__file__, str(path), str(memory), str(seconds)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # What can be imported here can be imported there.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        # Ctrl-C is for the caller, who then ends it.
        start_new_session=True,
    )
    with process:
        try:
            said, _ = process.communicate(light, timeout=seconds * _WALL_FOR_A_CPU_SECOND)
            end = f"it ended the process that looked at it ({_how(process.returncode)})"
        except subprocess.TimeoutExpired:
            process.kill()
            said, _ = process.communicate()
            end = f"it kept the process that looked at it busy for {seconds * _WALL_FOR_A_CPU_SECOND} s"
        except BaseException:
            process.kill()
            raise
    return _read(said), end


def _read(said: bytes) -> dict[str, tuple[str, bytes]]:
    answers: dict[str, tuple[str, bytes]] = {}
    position = 0
    while (newline := said.find(b"\n", position)) >= 0:
        head = json.loads(said[position:newline])
        position = newline + 1 + head["bytes"]
        if position <= len(said):
            answers[head["step"]] = (head["problem"], said[newline + 1 : position])
    return answers


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    if -code == getattr(signal, "SIGXCPU", None):
        return "it took more time than it may"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
