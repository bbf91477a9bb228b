"""Owners of kernels whose tensors onnxruntime renamed, because it changed their memory layout."""

from __future__ import annotations

from tests.unit.profiling.conftest import Profiler


def test_layout_of_a_convolutional_model_changes_no_owners(profiled: Profiler) -> None:
    whole, layout = profiled("resnet", optimization="extended"), profiled("resnet", optimization="all")
    assert any("_nchwc" in kernel.name for kernel in layout.kernels)
    calls = [{c for k in report.kernels for c in (k.call, *k.contributors)} for report in (whole, layout)]
    assert calls[0] == calls[1]
    assert all(kernel.kind in ("exact", "fused") for kernel in layout.kernels)
    # Each kernel does the work of a few calls of one block, not of the whole model.
    assert max(len(kernel.contributors) for kernel in layout.kernels) <= 4
