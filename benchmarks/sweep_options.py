"""What the sweep and the measurement of synthesis rules share: options, the choice of models, the results so far."""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


def sweep_parser(description: str | None, results: str, seconds: int, limited: str) -> argparse.ArgumentParser:
    """The options of both; the limits are for each `limited`: a model, or a step of it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=None, help="only the first so many models of the shuffled order")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no other model after this long")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns for names such as timm:vgg")
    parser.add_argument("--results", type=Path, default=Path(results), help="the file of the results so far")
    parser.add_argument("--seconds", type=int, default=seconds, help=f"CPU time for each {limited}")
    parser.add_argument("--memory", type=float, default=6, help=f"GiB for each {limited}")
    return parser


def chosen(candidates: Iterable[Any], only: list[str]) -> list[Any]:
    """The candidates whose names match one of the patterns."""
    return [c for c in candidates if any(fnmatch.fnmatch(str(c), pattern) for pattern in only)]


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """The results so far; the last line may be incomplete."""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        with contextlib.suppress(json.JSONDecodeError):
            yield json.loads(line)
