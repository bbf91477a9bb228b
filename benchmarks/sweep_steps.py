"""What is done with one model of the sweep: built, exported by each way there is, and what ours wrote checked.

Every export is a process of its own, forked from the one that holds the model: what an exporter leaves behind in the
libraries (transformers' registers its caches with torch, for one) does not help the next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import re
import signal
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx
import torch
from benchmarks.package_verdicts import stated_ranges
from benchmarks.quiet import quiet
from benchmarks.sweep_candidates import UNCHANGED, Candidate, build, builders
from benchmarks.sweep_checks import check_export
from benchmarks.sweep_probes import PROBES, run_probes
from benchmarks.sweep_process import describe, run_limited
from benchmarks.sweep_shrinking import LEVELS, Level
from benchmarks.sweep_sizes import run_sizes
from torch.utils import _pytree as pytree

import modelexport
from modelexport.capture import DYNAMO_WITH_CACHES
from modelexport.torch_support.example_inputs import normalize_inputs
from modelexport.torch_support.tensor_paths import named_results

# So many calls of forward for each size of a model, and then again.
_CALLS = (16, 160)
# The CPU time for the inputs of one size; after it, no other size is tried.
_MOST_SECONDS = 40


@dataclasses.dataclass(frozen=True)
class Limits:
    """For each step."""

    cpu_seconds: int = 240
    memory_bytes: int = 6 * 2**30


@dataclasses.dataclass(frozen=True)
class Built:
    """A model that runs a forward pass on these inputs."""

    model: torch.nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


def sweep_one(
    candidate: Candidate, limits: Limits, known: Mapping[str, Mapping[str, Any]], measured: str = "all"
) -> dict[str, Any]:
    """All that there is to say of one model, as JSON: each step with its outcome.

    Args:
        candidate: The model.
        limits: The limits of each step.
        known: By configuration, the outcomes of other exporters that are known already: these are not run again.
        measured: What is measured: see `sweep_records.MEASURES`.
    """
    record: dict[str, Any] = {"name": str(candidate), "source": candidate.source, "limit": limits.cpu_seconds}
    with quiet(), tempfile.TemporaryDirectory(prefix="modelexport-sweep-") as folder:
        built = build_with_inputs(candidate, record)
        if built is None:
            return record
        record["configuration"] = configuration_of(built)
        outcomes = known.get(record["configuration"], {})
        ours_only = measured != "all"
        files = Path(folder)

        def step(work: Callable[[], Any]) -> dict[str, Any]:
            return run_limited(work, limits.cpu_seconds, limits.memory_bytes)

        if measured in _PROOFS:
            return {**record, **_PROOFS[measured](built, files / "ours.onnx", step)}

        def other(way: str, export: Callable[[Built, Path], Any]) -> None:
            if way in outcomes and _still_known(outcomes[way], limits):
                record[way] = outcomes[way]
            elif not ours_only:
                record[way] = step(lambda: export(built, files / f"{way}.onnx"))

        other("plain", export_plainly)
        if "error" in record.get("plain", {}) and _uses_cache(built.model):
            other("plain_no_cache", _without_cache)
        if candidate.source == "transformers":
            other("transformers", export_with_transformers)
        other("torchscript", export_with_torchscript)
        record["ours"] = step(lambda: export_ours(built, files / "ours.onnx"))
        if "value" in record["ours"]:
            if record["ours"]["value"]["exporter"] == DYNAMO_WITH_CACHES:
                other("with_caches", _with_caches)
            record["same_bytes"] = step(lambda: _same_bytes(built, files, record))
            if not ours_only:
                checks = step(lambda: check_export(files / "ours.onnx", built.model, built.args, built.kwargs))
                record["checks"] = checks
    return record


def _still_known(outcome: Mapping[str, Any], limits: Limits) -> bool:
    """Whether an export that ran into its time limit would do so again."""
    return not outcome.get("error", "").startswith("TimeLimit") or outcome["limit"] >= limits.cpu_seconds


def configuration_of(built: Built) -> str:
    """A digest of what an export depends on: the modules, the configuration and the inputs."""
    config = getattr(built.model, "config", None)
    text = f"{built.model}\n{config.to_dict() if hasattr(config, 'to_dict') else config}"
    digest = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", text).encode())
    for path, leaf in pytree.tree_flatten_with_path((built.args, built.kwargs))[0]:
        shown = f"{tuple(leaf.shape)} {leaf.dtype}" if isinstance(leaf, torch.Tensor) else str(leaf)
        digest.update(f"{path} {shown}\n".encode())
    return digest.hexdigest()[:16]


def _same_bytes(built: Built, files: Path, record: Mapping[str, Any]) -> bool | None:
    """Whether our file, without our metadata, is what the exporter writes without us; None where that is not known."""
    ours = record["ours"]["value"]
    way = {"dynamo": "plain", DYNAMO_WITH_CACHES: "with_caches"}.get(ours["exporter"], ours["exporter"])
    outcome = record.get(way, {}).get("value", {})
    if ours["variant"] or "digest" not in outcome or outcome.get("wrapped"):
        return None
    stripped = digest_of(modelexport.strip_hierarchy(onnx.load(files / "ours.onnx")))
    if stripped == outcome["digest"] or "measured" not in record[way]:
        return stripped == outcome["digest"]
    # An export of an earlier process may differ in the order of a set: what counts is one that is made now.
    return bool(stripped == _EXPORTS[way](built, files / "again.onnx")["digest"])


def build_with_inputs(
    candidate: Candidate, record: dict[str, Any], levels: Sequence[Level] = LEVELS, without: Collection[str] = ()
) -> Built | None:
    """The smallest model that can be built and accepts synthesized inputs; the outcomes go to the record.

    Args:
        candidate: The model.
        record: Gets what was built, the inputs, and the rules that found them.
        levels: How small, the smallest first.
        without: Names of repairs that the synthesis does not use.
    """
    from modelexport.sources.inputs.synthesis import synthesize_inputs

    began = time.process_time()
    # What failed first counts: the largest models are the last.
    not_built: dict[str, str] = {}
    no_inputs: str | None = None
    # A model whose sizes contradict each other takes no inputs at all: few calls for each, before many for any.
    ways = list(builders(candidate, levels))
    buildable = set(range(len(ways)))
    for calls, (place, (how, make)) in itertools.product(_CALLS, enumerate(ways)):
        if place not in buildable or time.process_time() - began > _MOST_SECONDS:
            continue
        try:
            model = build(make)
        except Exception as error:  # noqa: BLE001  the next size may do
            not_built[how] = describe(error)
            buildable.remove(place)
            continue
        record["built"] = {"how": how, "parameters": sum(p.numel() for p in model.parameters())}
        try:
            with _limited_time(_MOST_SECONDS):
                found = synthesize_inputs(model, without=without, most_calls=calls)
        except (Exception, OutOfTime) as error:  # noqa: BLE001  the next size may do
            no_inputs = no_inputs or describe(error)
            continue
        inputs = found.inputs
        args, kwargs = normalize_inputs(inputs, None)
        record["forward"] = {
            "inputs": sorted(map(str, inputs)) if isinstance(inputs, dict) else len(args),
            "rules": found.rules,
            "guesses": dict(found.guesses),
            "calls": found.calls,
        }
        return Built(model, args, kwargs)
    if "built" in record:
        record["forward"] = {"error": no_inputs}
    else:
        record["built"] = {"error": next(iter(not_built.values()), "there is nothing to build")}
        if UNCHANGED in not_built:
            record["built"]["unchanged"] = not_built[UNCHANGED]
    return None


class OutOfTime(BaseException):
    """Finding inputs took too long. Not an `Exception`, which the synthesis would take for the model's answer."""


@contextlib.contextmanager
def _limited_time(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` after so many seconds of CPU time: a single call of a model may take a minute."""

    def stop(*_: object) -> None:
        raise OutOfTime(f"no inputs were found in {seconds:g} s of CPU time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _file(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "digest": digest_of(onnx.load(path))}


def digest_of(model: onnx.ModelProto) -> str:
    """A digest of a model."""
    return hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest()


def export_plainly(built: Built, path: Path, **options: Any) -> dict[str, Any]:
    """`torch.onnx.export` as it is, with its defaults; but weights inside, for one file to compare."""
    # Not a copy of the inputs: torch also exports whether an input is a view.
    given = {"kwargs": built.kwargs or None, "external_data": False, "verbose": False}
    torch.onnx.export(built.model, built.args, str(path), dynamo=True, **given, **options)
    return _file(path)


def _uses_cache(model: torch.nn.Module) -> bool:
    return any(getattr(config, "use_cache", False) is True for config in _configurations(model))


def _configurations(model: torch.nn.Module) -> Iterator[Any]:
    """The configuration of the model and of its parts, where it is one of transformers."""
    waiting, seen = [getattr(model, "config", None)], set()
    while waiting:
        config = waiting.pop()
        if not hasattr(config, "to_dict") or id(config) in seen:
            continue
        seen.add(id(config))
        yield config
        waiting.extend(vars(config).values())


def _without_cache(built: Built, path: Path) -> dict[str, Any]:
    for config in _configurations(built.model):
        if hasattr(config, "use_cache"):
            config.use_cache = False
    return export_plainly(built, path)


def _with_caches(built: Built, path: Path) -> dict[str, Any]:
    """`torch.onnx.export` as it is, when torch knows transformers' caches."""
    from transformers.exporters.exporter_dynamo import register_cache_pytrees_for_model

    register_cache_pytrees_for_model(built.model)
    return export_plainly(built, path)


def export_with_transformers(built: Built, path: Path) -> dict[str, Any]:
    """transformers' own exporter."""
    from transformers.exporters.exporter_onnx import OnnxConfig, OnnxExporter

    if built.args:
        raise TypeError("transformers' exporter takes inputs by keyword alone")
    OnnxExporter().export(built.model, built.kwargs, OnnxConfig()).save(path, external_data=False)
    return _file(path)


def export_with_torchscript(built: Built, path: Path) -> dict[str, Any]:
    """torch's older exporter, as it is; and where it cannot sort the arguments or results, for tensors alone."""
    try:
        torch.onnx.export(
            built.model, built.args, str(path), kwargs=built.kwargs or None, dynamo=False, external_data=False
        )
    except Exception:  # noqa: BLE001  tried again below, where it is raised if it is not the form of the call
        path.unlink(missing_ok=True)
        apart = path.with_name("wrapped.onnx")
        wrapped, tensors = _of_tensors(built)
        torch.onnx.export(wrapped, tensors, str(apart), dynamo=False, external_data=False)
        return {**_file(apart), "wrapped": True}
    return _file(path)


def _of_tensors(built: Built) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """The model as one that takes tensors in a row, and returns tensors in a row."""
    leaves, spec = pytree.tree_flatten((built.args, built.kwargs))
    places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    class OfTensors(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = built.model

        def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
            given = list(leaves)
            for place, tensor in zip(places, tensors, strict=True):
                given[place] = tensor
            args, kwargs = pytree.tree_unflatten(given, spec)
            return tuple(tensor for _, tensor in named_results(self.model(*args, **kwargs)))

    return OfTensors().eval(), tuple(leaves[place] for place in places)


class NoWayError(Exception):
    """What stopped each attempt, in order."""

    def __init__(self, failures: list[tuple[str, str]]) -> None:
        super().__init__(" || ".join(f"{name}: {text.rpartition(' << ')[2][:300]}" for name, text in failures))


class EscapedError(Exception):
    """The package raised something else than its own errors."""


def export_ours(built: Built, path: Path, **more: Any) -> dict[str, Any]:
    """Ours with its defaults; where it asks for consent to specialization, once more with it."""
    inputs = built.kwargs if not built.args else built.args
    options: dict[str, Any] = {"kwargs": built.kwargs} if built.args and built.kwargs else {}
    options |= {"external_data": False, "overwrite": True, "check": "run", **more}
    try:
        try:
            result = modelexport.export_model(built.model, inputs, path, **options)
        except modelexport.SpecializationError:
            options["allow_specialization"] = True
            result = modelexport.export_model(built.model, inputs, path, **options)
    except modelexport.AllStrategiesFailedError as error:
        raise NoWayError([(name, describe(failure)) for name, failure in error.failures]) from None
    except modelexport.ModelExportError:
        raise
    except Exception as error:
        raise EscapedError(describe(error)) from error
    return {
        "strategy": result.document.strategy,
        "exporter": result.document.exporter,
        "variant": result.attempts[-1].variant,
        "attempts": [attempt.error for attempt in result.attempts if attempt.error],
        "nodes": len(result.document.nodes),
        "coverage": result.coverage,
        "specialized": "allow_specialization" in options,
        "notes": list(result.notes),
        "ranges": stated_ranges(result.document),
        "check": {**msgspec.to_builtins(result.check), "says": str(result.check)},
    }


def _with_probes(built: Built, path: Path, step: Callable[[Callable[[], Any]], dict[str, Any]]) -> dict[str, Any]:
    """Ours, checked on probes by itself, and then by the sweep's own judge on its own."""
    found = {"ours": step(lambda: export_ours(built, path, probes=PROBES))}
    if "value" in found["ours"]:
        found["probes"] = step(lambda: run_probes(path, built.model, built.args, built.kwargs))
    return found


def _with_sizes(built: Built, path: Path, step: Callable[[Callable[[], Any]], dict[str, Any]]) -> dict[str, Any]:
    """Ours with the dynamic axes that it finds, run at other sizes by the sweep's own judge."""
    found = {"ours": step(lambda: export_ours(built, path, dynamic="auto"))}
    if "value" in found["ours"]:
        notes, ranges = found["ours"]["value"]["notes"], found["ours"]["value"]["ranges"]
        found["sizes"] = step(lambda: run_sizes(path, built.model, built.args, built.kwargs, ranges, notes))
    return found


_PROOFS = {"probes": _with_probes, "sizes": _with_sizes}
_EXPORTS = {
    "plain": export_plainly,
    "with_caches": _with_caches,
    "transformers": export_with_transformers,
    "torchscript": export_with_torchscript,
}
