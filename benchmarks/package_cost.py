"""Measure what our export of a small model costs, in CPU time of all processes, beside plain torch's export."""

from __future__ import annotations

import gc
import inspect
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from benchmarks.package_model import PackageModel
from benchmarks.package_models import find_model
from benchmarks.package_runs import cpu_seconds
from benchmarks.quiet import quiet
from benchmarks.sweep_process import attempted

import modelexport


def measure(payload: Any) -> dict[str, Any]:
    """The ratios of the medians over the rounds: with the default check, without it, and with the axes named."""
    spec = find_model(payload["name"])
    with quiet(), tempfile.TemporaryDirectory(prefix="modelexport-packages-") as folder:
        return attempted(lambda: _ratios(spec, payload["rounds"], Path(folder)))


def _ratios(spec: PackageModel, rounds: int, folder: Path) -> dict[str, Any]:
    ways = _ways(spec, folder)
    costs: dict[str, list[float]] = {name: [] for name in ways}
    for name in list(ways):
        try:
            ways[name]()  # warm
        except Exception:
            if not name.endswith("dynamic"):
                raise
            del ways[name]
    for number in range(rounds):
        for name in ways if number % 2 == 0 else reversed(list(ways)):
            costs[name].append(_cost(ways[name]))
    medians = {name: statistics.median(found) for name, found in costs.items() if found}
    has_dynamic = {"plain_dynamic", "ours_dynamic"} <= set(medians)
    return {
        "plain": medians["plain"],
        "checked": medians["ours"] / medians["plain"],
        "unchecked": medians["unchecked"] / medians["plain"],
        "dynamic": medians["ours_dynamic"] / medians["plain_dynamic"] if has_dynamic else None,
        "rounds": rounds,
    }


def _ways(spec: PackageModel, folder: Path) -> dict[str, Callable[[], object]]:
    model, args = spec.model(), spec.args(spec.example())
    axes = spec.named_axes({dimension for of in spec.axes() for dimension in of.values()})
    shapes = tuple(None if value is None else of for value, of in zip(args, axes, strict=True))
    named = {name: of for name, of in zip(inspect.signature(model.forward).parameters, axes, strict=False) if of}
    path = folder / "model.onnx"

    def plain(**options: Any) -> object:
        return torch.onnx.export(model, args, str(path), dynamo=True, external_data=False, verbose=False, **options)

    def ours(**options: Any) -> object:
        return modelexport.export_model(model, args, path, external_data=False, overwrite=True, **options)

    return {
        "plain": plain,
        "ours": ours,
        "unchecked": lambda: ours(check="off"),
        "plain_dynamic": lambda: plain(dynamic_shapes=shapes),
        "ours_dynamic": lambda: ours(dynamic=named),
    }


def _cost(run: Callable[[], object]) -> float:
    gc.collect()
    gc.disable()
    try:
        before = cpu_seconds()
        run()
        return cpu_seconds() - before
    finally:
        gc.enable()
