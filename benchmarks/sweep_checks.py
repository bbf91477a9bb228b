"""What is checked of a file that ours wrote: bytes, owners by value, extraction, and onnxruntime against PyTorch.

Each check stands alone: one that cannot be made says why, and the others go on.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from benchmarks.sweep_candidates import SEED
from benchmarks.sweep_process import describe
from tests.support.value_check import judge

import modelexport
from modelexport.analysis.verification_report import Verdict
from modelexport.hierarchy.document import HierarchyDocument
from modelexport.torch_support import preserved_state, weights_restored
from modelexport.torch_support.tensor_paths import named_arguments, named_results
from modelexport.verification.contamination_by_value import validate_owners_by_value
from modelexport.verification.onnx_run import GraphInputs

RTOL, ATOL = 1e-3, 1e-4
# The number of calls of a model that are extracted.
_CALLS = 4
# So long is looked for the call that an error comes from.
_CULPRIT_SECONDS = 60


def check_export(path: Path, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The outcome of each check: what it found, or an ``error`` where it could not be made."""
    document = modelexport.load(path).document
    feeds = feeds_of(path, document, model, args, kwargs)
    checks: dict[str, Callable[[], Any]] = {
        "runtime": lambda: compare_with_pytorch(path, feeds, model, args, kwargs),
        "contaminated": lambda: contaminated_nodes(path, document, feeds, model, args, kwargs),
        "judged": lambda: judged_nodes(path, model, args, kwargs),
        "extracted": lambda: extracted_calls(path, document, model, args, kwargs),
    }
    found: dict[str, Any] = {}
    for name, check in checks.items():
        try:
            # A model may change itself in its first run alone: every check gets it as it was exported.
            with preserved_state(model), weights_restored(model):
                found[name] = check()
        except Exception as error:  # noqa: BLE001  that it cannot be checked is an outcome too
            found[name] = {"error": describe(error)}
    return found


def feeds_of(
    path: Path, document: HierarchyDocument, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, np.ndarray]:
    """The inputs of the graph, by the names that the root's boundary gives them, else in their order."""
    graph = onnx.load(path, load_external_data=False).graph
    weights = {weight.name for weight in graph.initializer}
    names = [value.name for value in graph.input if value.name not in weights]
    found = GraphInputs(document, model, args, kwargs, names)
    if not found.missing:
        return {name: _array(tensor) for name, tensor in found.tensors.items()}
    arguments = next(module for module in document.modules if module.path == "").forward_arguments
    given = dict(named_arguments(arguments, args, kwargs))
    return {name: _array(tensor) for name, tensor in zip(names, given.values(), strict=False)}


def _array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().cpu().numpy()


def compare_with_pytorch(
    path: Path, feeds: dict[str, np.ndarray], model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """How far the results of onnxruntime are from PyTorch's; where they are not equal, what that may come from.

    ``equal_unoptimized`` says whether they are equal where the runtime runs the file node by node, ``random`` that
    PyTorch is not equal to itself from another random state, and ``introduced``, where neither is so, which call's
    nodes do it.
    """
    leaves = _results(model, args, kwargs, SEED)
    found = _compared(_run(path, feeds, optimized=True), leaves)
    if not found["equal"]:
        plainly = _compared(_run(path, feeds, optimized=False), leaves)
        found |= {"equal_unoptimized": plainly["equal"], "error_unoptimized": plainly["error"]}
        again = _results(model, args, kwargs, SEED + 1)
        found["random"] = not all(map(_equal, leaves, again)) if len(leaves) == len(again) else True
        if not found["random"] and not plainly["equal"]:
            found["introduced"] = _culprit(path, model, args, kwargs)
    return found


def _culprit(path: Path, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """The call that introduces the worst error, where there is one and it is found in time."""
    end = time.process_time() + _CULPRIT_SECONDS

    def check(done: int, total: int, call: str) -> None:
        if time.process_time() > end:
            raise TimeoutError

    try:
        report = modelexport.verify_modules(path, model, _inputs(args, kwargs), rtol=RTOL, atol=ATOL, progress=check)
    except Exception:  # noqa: BLE001  what comes of it is no more than a hint
        return None
    return next((record.call or "(root)" for record in report.calls if record.verdict is Verdict.INTRODUCED), None)


def _results(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], seed: int) -> list[np.ndarray]:
    with torch.no_grad():
        torch.manual_seed(seed)
        return [_array(t) for _, t in named_results(model(*copy.deepcopy(args), **copy.deepcopy(kwargs)))]


def _run(path: Path, feeds: dict[str, np.ndarray], *, optimized: bool) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    taken = {value.name for value in session.get_inputs()}
    return list(session.run(None, {name: array for name, array in feeds.items() if name in taken}))


def _compared(results: list[Any], leaves: list[np.ndarray]) -> dict[str, Any]:
    """Each result with the one that it is.

    Exporters leave out results that repeat others, and each has its own order: a result is the nearest of its shape.
    """
    worst, equal, strange = 0.0, True, 0
    for result in results:
        alike = [leaf for leaf in leaves if isinstance(result, np.ndarray) and leaf.shape == result.shape]
        if not alike:
            strange += 1
            continue
        near = min(alike, key=lambda leaf: _distance(result, leaf))
        worst = max(worst, _distance(result, near))
        equal &= _equal(result, near)
    return {"equal": equal and strange < len(results), "error": worst, "outputs": len(results), "unmatched": strange}


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.shape != other.shape:
        return False
    return bool(np.allclose(_number(one), _number(other), rtol=RTOL, atol=ATOL, equal_nan=True))


def _number(array: np.ndarray) -> np.ndarray:
    return array if array.dtype.kind in "fc" else array.astype(np.float64)


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    if not one.size:
        return 0.0
    first, second = _number(one), _number(other)
    same = (first == second) | (np.isnan(first) & np.isnan(second))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.where(same, 0.0, np.abs(first - second))
    return float(np.nan_to_num(apart, nan=np.inf, posinf=1e30).max()) if not np.isnan(apart).any() else 1e30


def contaminated_nodes(
    path: Path,
    document: HierarchyDocument,
    feeds: dict[str, np.ndarray],
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Owners that the values of eager PyTorch contradict, by the tests' judge, which shares no code with ours."""
    records = {node.id: node for node in document.nodes}
    claims: dict[str, tuple[str, ...]] = {}
    for node in onnx.load(path, load_external_data=False).graph.node:
        record = records.get(next((name for name in node.output if name), ""))
        if record is not None:
            claims.update(dict.fromkeys(node.output, (record.module, *record.contributors)))
    torch.manual_seed(SEED)
    with forgotten_results(model):
        verdict = judge(path, claims, model, copy.deepcopy(args), copy.deepcopy(kwargs), feeds)
    cases = [f"{case.node}: {case.claimed}, but {case.computed_by}" for case in verdict.contaminated]
    return {"count": len(cases), "judged": verdict.judged, "cases": cases[:5]}


@contextlib.contextmanager
def forgotten_results(model: torch.nn.Module) -> Iterator[None]:
    """Within, every call computes anew what functions beside the model's classes keep of others: exports do so too."""
    modules = {base.__module__ for module in model.modules() for base in type(module).__mro__}
    found = [thing for thing in gc.get_objects() if type(thing) is functools._lru_cache_wrapper]
    caches = [cache for cache in found if cache.__module__ in modules]

    def forget(*_: object) -> None:
        for cache in caches:
            cache.cache_clear()

    handles = [module.register_forward_pre_hook(forget) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def judged_nodes(path: Path, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The findings of `modelexport validate --check-contamination` with the model."""
    torch.manual_seed(SEED)
    report = validate_owners_by_value(path, model, _inputs(args, kwargs))
    return {"count": len(report.findings), "cases": [str(finding.message) for finding in report.findings[:5]]}


def _inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args and kwargs:
        raise NotImplementedError("positional and named inputs at once")
    return copy.deepcopy(args or kwargs)


def extracted_calls(
    path: Path, document: HierarchyDocument, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """A few calls, extracted and run on the inputs of PyTorch's module; calls without nodes are left out."""
    at_work = {node.module for node in document.nodes} - {""}
    calls = [call.id for call in document.calls if call.id in at_work]
    chosen = random.Random(SEED).sample(calls, min(_CALLS, len(calls)))
    if not chosen:
        return {"equal": 0, "reordered": 0, "different": 0, "refused": 0, "cases": []}
    select = " or ".join(f'call:"{call}"' for call in chosen)
    report = modelexport.verify_modules(path, model, _inputs(args, kwargs), select=select, rtol=RTOL, atol=ATOL)
    wrong = [r for r in report.calls if r.verdict in (Verdict.FAILED, Verdict.INTRODUCED, Verdict.INSIDE)]
    reordered = [r for r in report.calls if r.verdict is Verdict.REORDERED]
    judged = {record.call for record in (*wrong, *reordered)}
    equal = sum(record.introduced is not None for record in report.calls if record.call not in judged)
    return {
        "equal": equal,
        "reordered": len(reordered),
        "different": len(wrong),
        "refused": len(report.calls) - equal - len(judged),
        "cases": [f"{record.call}: {record.verdict} {record.explanation}"[:300] for record in wrong],
    }
