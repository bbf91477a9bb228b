"""Load a `.pt2` file of `torch.export.save` as a model, with the example inputs that it was exported with."""

from __future__ import annotations

import contextlib
import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from modelexport.capture import model_of_program
from modelexport.errors import ModelSourceError
from modelexport.sources.loaders.pt2.archive_check import checked_program
from modelexport.sources.loaders.sourced_model import SourcedModel
from modelexport.torch_support import TORCH_LOCK


def load_exported_program(path: Path) -> SourcedModel:
    """Load the program in a file as a model with the modules that its nodes name.

    Raises:
        ModelSourceError: The file is not an exported program, or loading it could run code.
    """
    with checked_program(path) as checked:
        try:
            with TORCH_LOCK, warnings.catch_warnings(), _quiet("torch.export", "torch._export"):
                warnings.simplefilter("ignore")
                program = torch.export.load(checked.archive)
                program.example_inputs = checked.example_inputs
                model = model_of_program(program)
        except Exception as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ModelSourceError(
                f"{path}: torch {torch.__version__} cannot load this exported program: {reason}; save it again with "
                "this release of torch, and import the packages whose operators or classes it uses"
            ) from error
    return SourcedModel(model, _examples(program))


def _examples(program: torch.export.ExportedProgram) -> Any | None:
    if not program.example_inputs:
        return None
    args, kwargs = program.example_inputs
    # A dict after the positional inputs has the keyword inputs.
    return (*args, dict(kwargs)) if args else dict(kwargs)


@contextlib.contextmanager
def _quiet(*names: str) -> Any:
    """Silence loggers: torch logs a full traceback of a file that it cannot load, and then raises."""
    loggers = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    try:
        for logger, _ in loggers:
            logger.setLevel(logging.CRITICAL)
        yield
    finally:
        for logger, level in loggers:
            logger.setLevel(level)
