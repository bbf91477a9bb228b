"""Submodels written to files."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

import modelexport
from modelexport.analysis.extraction import Extractor, write_submodel

_MEGABYTE = 2**20


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A file with a weight of 32 MB in a data file, and the weight."""
    path = tmp_path_factory.mktemp("large") / "net.onnx"
    model = torch.nn.Sequential(torch.nn.Linear(4, 2048), torch.nn.Linear(2048, 4096))
    modelexport.export_model(model, torch.ones(1, 4), path, external_data=True)
    return path, model[1].weight.detach().numpy()


@pytest.mark.parametrize("external_data", [True, False])
def test_weight_in_a_data_file_is_copied_without_reading_it_into_memory(
    large: tuple[Path, np.ndarray], tmp_path: Path, *, external_data: bool
) -> None:
    path, weight = large
    submodel = Extractor(path).extract("1")
    tracemalloc.start()
    try:
        files = write_submodel(submodel, tmp_path / "part.onnx", external_data=external_data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * _MEGABYTE
    assert len(files) == (3 if external_data else 2)
    arrays = [onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(files[0]).graph.initializer]
    assert any(np.array_equal(array, expected) for array in arrays for expected in (weight, weight.T))
