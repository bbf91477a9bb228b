"""Which weights files of a model are accepted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from modelexport.errors import ModelSourceError
from modelexport.sources.loaders.hub import folder_repository

NAMES = ("diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.safetensors.index.json")


def test_index_beside_a_single_weights_file_is_checked_too(tmp_path: Path) -> None:
    """diffusers reads the index where both exist."""
    (tmp_path / NAMES[0]).touch()
    (tmp_path / "w.bin").touch()
    (tmp_path / NAMES[1]).write_text(json.dumps({"weight_map": {"a": "w.bin"}}), encoding="utf-8")
    with pytest.raises(ModelSourceError, match=r"not \.safetensors files.*w\.bin"):
        folder_repository("folder", tmp_path).weights_file(NAMES)
    (tmp_path / NAMES[1]).write_text(json.dumps({"weight_map": {"a": NAMES[0]}}), encoding="utf-8")
    assert folder_repository("folder", tmp_path).weights_file(NAMES) == NAMES[0]
