"""Functions that end in each way in which a process can end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn


def double(number: Any) -> Any:
    print("doubled")  # noqa: T201  what it prints is the test
    return {"double": 2 * number, "process": os.getpid(), "torch": "torch" in sys.modules}


def fail(text: Any) -> NoReturn:
    try:
        {}[text]
    except KeyError as error:
        raise ValueError(f"first line\nsecond line of {text}") from error


class WithoutMessageError(Exception):
    """Its message cannot be shown."""

    def __str__(self) -> str:
        raise RuntimeError


def fail_without_message(_: Any) -> NoReturn:
    raise WithoutMessageError


def crash(number: Any) -> None:
    os.kill(os.getpid(), getattr(signal, number))


def leave(code: Any) -> NoReturn:
    os._exit(code)


def wait_forever(file: Any) -> None:
    """Start a process that would outlive this one, and say its id."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(file).write_text(str(child.pid), encoding="ascii")
    while True:
        time.sleep(1)


def eat_memory(_: Any) -> None:
    kept = []
    while True:
        kept.append(bytearray(16 * 2**20))


def say_bad_alloc(_: Any) -> None:
    """What C++ does when an allocation fails."""
    os.write(2, b"terminate called after throwing an instance of 'std::bad_alloc'\n")
    os.abort()


def import_json_tool() -> None:
    """Prepares a server: a module that nothing here imports."""
    import json.tool  # noqa: F401


def has_json_tool(_: Any) -> bool:
    sys.modules.pop("json", None)
    return "json.tool" in sys.modules


def return_object(_: Any) -> object:
    return object()


def spin(_: Any) -> None:
    while True:
        pass
