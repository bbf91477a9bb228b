"""Loads models by reference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from modelexport.errors import ModelSourceError
from modelexport.sources.loaders.model_reference import load_model
from modelexport.sources.loaders.sourced_model import LoadOptions


def load(reference: str | Path, **options: Any) -> Any:
    return load_model(str(reference), LoadOptions(**options))


def class_name(reference: str | Path, **options: Any) -> str:
    return type(load(reference, **options).model).__name__


def refusal(reference: str | Path, **options: Any) -> str:
    with pytest.raises(ModelSourceError) as raised:
        load(reference, **options)
    return str(raised.value)


def rewritten(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy of a folder with another configuration."""
    shutil.copytree(folder, target)
    written = {**json.loads((target / "config.json").read_bytes()), **changes}
    kept = {name: value for name, value in written.items() if value is not None}
    (target / "config.json").write_text(json.dumps(kept), encoding="utf-8")
    return target
