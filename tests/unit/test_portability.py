"""What the package needs of the operating system and of Python."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Libraries are imported first: what they need of the system is theirs. Then everything that Windows does not have goes.
_IMPORT_EVERYTHING = """
import importlib, os, pkgutil, signal, sys
import modelexport

for name in ("torch.onnx", "onnx", "onnx_ir", "onnxscript", "typer", "rich"):
    importlib.import_module(name)
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "geteuid", "getuid", "setsid", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"):
    delattr(os, name)
for name in ("SIGKILL", "SIGALRM", "SIGHUP", "SIGPIPE"):
    delattr(signal, name)
names = [module.name for module in pkgutil.walk_packages(modelexport.__path__, "modelexport.")]
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""


def test_every_module_is_imported_without_what_only_posix_systems_have() -> None:
    command = [sys.executable, "-c", _IMPORT_EVERYTHING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def test_classifiers_name_the_versions_of_python_that_were_tested() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = {
        c.rpartition(" ")[2] for c in project["classifiers"] if c.startswith("Programming Language :: Python :: 3.")
    }
    page = (ROOT / "docs/measurements/compatibility.md").read_text(encoding="utf-8")
    tested = {match[1] for match in re.finditer(r"^\| \d[^|]*\| (3\.\d+)\.\d+ \|", page, re.MULTILINE)}
    assert stated == tested
