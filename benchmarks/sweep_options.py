"""What the sweep and the measurement of synthesis rules share: the environment, options and the choice of models."""

from __future__ import annotations

import argparse
import fnmatch
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def set_environment() -> None:
    """Set what torch and transformers read when they are imported."""
    # One core for each model.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # Nothing is downloaded.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # CUDA cannot be used in a forked process.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""


def sweep_parser(description: str | None, results: str, seconds: int, limited: str) -> argparse.ArgumentParser:
    """The options of both; the limits are for each `limited`: a model, or a step of it."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=None, help="only the first so many models of the shuffled order")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no other model after this long")
    parser.add_argument("--only", nargs="*", default=["*"], help="patterns for names such as timm:vgg")
    parser.add_argument("--results", type=Path, default=Path(results), help="the file of the results so far")
    parser.add_argument("--seconds", type=int, default=seconds, help=f"CPU time for each {limited}")
    parser.add_argument("--memory", type=float, default=10, help=f"GiB for each {limited}")
    return parser


def chosen(candidates: Iterable[Any], only: list[str]) -> list[Any]:
    """The candidates whose names match one of the patterns."""
    return [c for c in candidates if any(fnmatch.fnmatch(str(c), pattern) for pattern in only)]
