"""Checks of the arguments of `export_model`, before anything is traced."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch

from modelexport.capture import DynamicAxes, read_module_tree
from modelexport.errors import InputError
from modelexport.hierarchy import CHECK_LEVELS, Boundaries, boundary_paths
from modelexport.ownership import InferencePolicy
from modelexport.storage import check_target, check_text_target, sidecar_path
from modelexport.strategies import AUTO, Candidate, StrategyRegistry, StrategySelector

# The environment variable with the default of `check`.
_CHECK_VARIABLE = "MODELEXPORT_CHECK"
# Arguments of torch.onnx.export that `export_model` sets itself.
_RESERVED = frozenset({"model", "args", "f", "dynamo"})
# Arguments of torch.onnx.export that declare dynamic axes.
_DYNAMIC = ("dynamic_shapes", "dynamic_axes")


def check_level(check: str | None, check_bytes: object, probes: object) -> str:
    """How much of the file is checked: the argument, the environment variable MODELEXPORT_CHECK, or ``"run"``."""
    level = check if check is not None else os.environ.get(_CHECK_VARIABLE) or CHECK_LEVELS[0]
    if level not in CHECK_LEVELS:
        where = "check" if check is not None else _CHECK_VARIABLE
        raise InputError(f"{where} is {level!r}: choose one of {', '.join(CHECK_LEVELS)}")
    if not isinstance(check_bytes, int) or check_bytes < 0:
        raise InputError(f"check_bytes is {check_bytes!r}: give the number of bytes up to which a file is run")
    if not isinstance(probes, int) or probes < 0:
        raise InputError(f"probes is {probes!r}: give the number of inputs with other values to try")
    return level


def check_targets(
    output_path: object, graph_paths: Mapping[str, str | Path | None], overwrite: bool
) -> tuple[Path, dict[str, Path]]:
    """The path of the model, and the paths of the traced graphs by kind."""
    if not isinstance(output_path, str | os.PathLike):
        raise InputError(f"output_path is a {type(output_path).__name__}: give the path of the .onnx file to write")
    target = check_target(Path(output_path), force=overwrite)
    graph_files: dict[str, Path] = {}
    for kind, path in graph_paths.items():
        if path is not None and not isinstance(path, str | os.PathLike):
            raise InputError(f"{kind}_graph_path is a {type(path).__name__}: give the path of the file to write")
        if path is not None:
            taken = (target, sidecar_path(target), *graph_files.values())
            graph_files[kind] = check_text_target(Path(path), force=overwrite, taken=taken)
    return target, graph_files


def check_options(options: Mapping[str, Any], dynamic: object) -> None:
    """Check the arguments of `torch.onnx.export`."""
    accepted = set(inspect.signature(torch.onnx.export).parameters) - _RESERVED
    for name in options:
        if name not in accepted:
            close = difflib.get_close_matches(name, sorted(accepted), n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see the arguments of torch.onnx.export"
            raise InputError(f"unknown option {name!r}: {hint}")
    opset = options.get("opset_version")
    newest = onnx.defs.onnx_opset_version()
    if opset is not None and not (type(opset) is int and 1 <= opset <= newest):
        raise InputError(f"opset_version={opset!r} is not an opset: choose a number from 1 to {newest}")
    for name in ("input_names", "output_names"):
        given = options.get(name)
        is_names = isinstance(given, list | tuple) and all(isinstance(one, str) for one in given)
        if given is not None and not is_names and (name, given) != ("output_names", AUTO):
            raise InputError(f"{name}={given!r} is not a list of names: write {name}=['name']")
    declared = [name for name in _DYNAMIC if options.get(name) is not None]
    if dynamic is not None and declared:
        raise InputError(f"dynamic and {declared[0]} both declare dynamic axes: give one of them")


def inference_policy(model: torch.nn.Module, boundaries: Boundaries, advanced: bool) -> InferencePolicy:
    """How missing owners are inferred."""
    paths = boundary_paths(read_module_tree(model), boundaries) if boundaries != () else frozenset()
    return InferencePolicy(advanced, paths)


def candidates(
    registry: StrategyRegistry | None,
    strategy: str,
    exporter: str | None,
    model: torch.nn.Module,
    dynamic: DynamicAxes | None,
    torch_options: Mapping[str, Any],
) -> list[Candidate]:
    """The strategies and exporters to try, in order."""
    if registry is not None and not isinstance(registry, StrategyRegistry):
        raise InputError(f"registry={registry!r} is a {type(registry).__name__}: give a modelexport.StrategyRegistry")
    has_dynamic_axes = dynamic is not None or any(torch_options.get(name) is not None for name in _DYNAMIC)
    return StrategySelector(registry).candidates(strategy, exporter, model, dynamic_shapes=has_dynamic_axes)
