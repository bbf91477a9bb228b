"""Several commands in one process of their own, so that libraries are imported once, and as the environment says.

    python -m tests.support.commands_in_process '[["inspect", "builtin:bert-tiny"], …]'

prints, as JSON, the exit code, stdout and stderr of each.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.command import Outcome

ROOT = Path(__file__).parents[2]
APART = Path(sys.prefix, "apart")
_TORCHVISION = "MODELEXPORT_TEST_TORCHVISION"


def run_commands(
    commands: Sequence[Sequence[str | Path]], *, torchvision: bool = False, **environment: str
) -> list[Outcome]:
    """How each command ended.

    Args:
        commands: The arguments of each.
        torchvision: Let the process import torchvision and timm.
        environment: Variables of the process.
    """
    paths = [str(ROOT / "src"), str(ROOT), *([str(APART)] if torchvision else [])]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.commands_in_process", json.dumps([[*map(str, c)] for c in commands])],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            _TORCHVISION: "1" if torchvision else "",
            **environment,
        },
        stdout=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        timeout=240,
        check=True,
    )
    return [Outcome(*outcome) for outcome in json.loads(ended.stdout)]


def _run(arguments: list[str]) -> tuple[int, str, str]:
    from modelexport.cli.main import run

    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["modelexport", *arguments]
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run()
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, out.getvalue(), err.getvalue()


def _main() -> None:
    from tests.support.faster_exports import faster_exports

    if os.environ.get(_TORCHVISION):
        from tests.support.torchvision_ops import declare

        # Kept until the process ends.
        declarations = declare()
    else:
        declarations = None
    with faster_exports():
        outcomes = [_run(arguments) for arguments in json.loads(sys.argv[1])]
    sys.stdout.write(json.dumps(outcomes))
    del declarations


if __name__ == "__main__":
    _main()
