"""The process that `confined` starts: the ONNX checker and shape inference on a file from a stranger, under limits.

Started as a script, and imports nothing of this package. A file can end it; what it has said by then counts. It is
given the model for shape inference on stdin, and answers each step with a line of JSON, the last with the types found.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, BinaryIO

_MESSAGE_CHARACTERS = 500


def _limit(memory: int, seconds: int) -> None:
    try:
        import resource
    except ImportError:  # Windows has no such limits; there the time is all that is limited, by the caller
        return
    for what, amount in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_DATA, memory),
    ):
        most = resource.getrlimit(what)[1]
        if most == resource.RLIM_INFINITY or amount < most:
            resource.setrlimit(what, (amount, most))


def _answer(answers: BinaryIO, step: str, problem: str = "", content: bytes = b"") -> None:
    head = {"step": step, "problem": problem, "bytes": len(content)}
    answers.write(json.dumps(head).encode() + b"\n" + content)
    answers.flush()


def _problem(work: Any, *args: Any, **options: Any) -> str:
    try:
        work(*args, **options)
    except Exception as error:  # noqa: BLE001  the C++ parts raise whatever they do
        return " ".join(f"{type(error).__name__}: {error}".split())[:_MESSAGE_CHARACTERS]
    return ""


def main() -> None:
    """Check the file named by the first argument, within the bytes and seconds of the others."""
    # Whatever prints to stdout must not end up among the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    path, memory, seconds = sys.argv[1:]
    _limit(int(memory), int(seconds))
    import onnx
    import onnx.checker
    import onnx.shape_inference

    light = sys.stdin.buffer.read()
    _answer(answers, "started")
    _answer(answers, "checker", _problem(onnx.checker.check_model, path, full_check=False))
    infer = onnx.shape_inference.infer_shapes
    _answer(answers, "shapes", _problem(infer, light, check_type=True, strict_mode=True))
    try:
        graph = infer(light, data_prop=True).graph
        for field in ("node", "initializer", "sparse_initializer", "metadata_props"):
            graph.ClearField(field)
        _answer(answers, "types", content=graph.SerializeToString())
    except Exception:  # noqa: BLE001  as above; types are a help, and what is wrong was said before
        _answer(answers, "types")


if __name__ == "__main__":
    main()
