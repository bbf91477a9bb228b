"""The command line in a process of its own, and what it left."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from tests.support.command import Outcome

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).with_name("modelexport")
FACTORIES = "tests.support.factories"
# Runs several commands, each as its console script does, and after each says whether torch has come with it.
WITHOUT_TORCH = """
import sys
from modelexport.cli.main import run
for number, command in enumerate(" ".join(sys.argv[1:]).split(" , ")):
    sys.argv = ["modelexport", *command.split()]
    try:
        run()
    except SystemExit as ended:
        print(f"{number} ended with {ended.code or 0}, torch imported: {'torch' in sys.modules}", file=sys.stderr)
"""
# A shell that starts the tests in the background has told its children to ignore Ctrl-C.
INTERRUPTIBLE = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from modelexport.cli.main import run
run()
"""
# Ctrl-C before the command line is imported.
INTERRUPTED_IMPORT = """
import signal, sys
class Interrupt:
    def find_spec(self, name, *_):
        if name == "modelexport.cli":
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
from modelexport.__main__ import main
main()
"""
# What the console script imports before the code that handles Ctrl-C runs.
IMPORTED_BY_THE_ENTRY = """
import sys
before = set(sys.modules)
from modelexport.__main__ import main
print(*sorted(set(sys.modules) - before))
"""
# For a model that takes no inputs that could be synthesized for it.
NO_INPUTS = ("--no-optimize",)


def start(*arguments: str | Path, script: str | None = None, **environment: str) -> subprocess.Popen[str]:
    command = [str(COMMAND)] if script is None else [sys.executable, "-c", script]
    return subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}", **environment},
    )


def in_process(*arguments: str | Path, script: str | None = None, **environment: str) -> Outcome:
    """The command in a process of its own."""
    with start(*arguments, script=script, **environment) as process:
        stdout, stderr = process.communicate(timeout=120)
        return Outcome(process.returncode, stdout, stderr)


@dataclasses.dataclass(frozen=True)
class Exported:
    """What exporting the built-in model left."""

    folder: Path
    outcome: Outcome

    @property
    def onnx_path(self) -> Path:
        return self.folder / "bert.onnx"

    @property
    def sidecar_path(self) -> Path:
        return self.folder / "bert_hierarchy.json"

    def copy(self, folder: Path) -> Path:
        """The model and its sidecar elsewhere, to be spoiled."""
        shutil.copy(self.sidecar_path, folder)
        return Path(shutil.copy(self.onnx_path, folder))


def files_in(folder: Path) -> dict[str, bytes]:
    """Everything below a folder, hidden or not."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plain_onnx(path: Path) -> Path:
    """A valid model that this project has never seen."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [value("x", TensorProto.FLOAT, [2])],
        [value("y", TensorProto.FLOAT, [2])],
    )
    onnx.save_model(helper.make_model(graph), path)
    return path
