"""Measure our export against plain `torch.onnx.export`: the ratios of time and of peak memory.

Both run in one process, alternating, after a warm-up of each, and write a new file each time. Ratios are those of CPU
time (user and system), so that other load on the machine and its disk matters little, and the median over the rounds;
the wall time is shown as well. Small models get more rounds. torch has one thread: with more, a small model spends
most of its time on waiting between threads. As in `timeit`, the garbage collector is off during a run: a full
collection takes 0.3 s with torch loaded, and whether one falls into a run depends on a threshold that both sides come
close to. Run with ``make benchmark``, or
``python -m benchmarks.export_overhead --rounds 7 --write docs/measurements/export-overhead.md``.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime
import torch
from benchmarks.pages import replace_part, table
from benchmarks.quiet import quiet
from torch import nn

import modelexport


@dataclasses.dataclass(frozen=True)
class Limits:
    """What one export may cost, as a multiple of plain export.

    Attributes:
        time: The ratio of CPU time.
        memory: The ratio of peak memory.
        constant_s: Seconds of CPU time on top, for what does not grow with the model: tracing a small one takes 20 ms.
        start_s: Seconds on top for an export with the check: the child process may start slower than a small model is
            traced.
    """

    time: float
    memory: float
    constant_s: float = 0.0
    start_s: float = 0.0


# `usage_based` also runs the model and the graph: measured, without a limit.
LIMITS = {"fx": Limits(1.05, 1.0), "htp": Limits(1.15, 1.0, constant_s=0.08, start_s=0.15)}
# Rounds are added until all runs together took this long, up to MOST_ROUNDS.
ENOUGH_S = 6.0
MOST_ROUNDS = 40
# What is measured: the title of its column, and how many digits are shown.
COLUMNS = {
    "plain_s": ("plain (CPU s)", 3),
    "ours_s": ("ours (CPU s)", 3),
    "time_ratio": ("time ratio", 3),
    "wall_ratio": ("ratio of wall time", 3),
    "plain_mb": ("plain peak (MB)", 0),
    "ours_mb": ("ours peak (MB)", 0),
    "memory_ratio": ("memory ratio", 3),
    "checked_s": ("with check (wall s)", 3),
    "checked_limit_s": ("limit (wall s)", 3),
}
# An export with the check may take so much more than the export, the load and the runs together.
CHECK_FACTOR = 1.1


def small_cnn() -> tuple[nn.Module, dict[str, Any] | tuple[Any, ...]]:
    layers: list[nn.Module] = []
    for inside, outside in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 16, 10)), (torch.randn(1, 3, 32, 32),)


def bert(layers: int, hidden: int) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    def build() -> tuple[nn.Module, dict[str, Any]]:
        from transformers import BertConfig, BertModel

        config = BertConfig(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=hidden // 64,
            intermediate_size=4 * hidden,
        )
        tokens = torch.randint(0, 1000, (1, 32))
        return BertModel(config), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    return build


MODELS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "small CNN": small_cnn,
    "BERT, 2 layers, hidden 128": bert(2, 128),
    "BERT, 12 layers, hidden 768": bert(12, 768),
}


def _peak_memory() -> int:
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024
    return 0


class Cost(NamedTuple):
    """The CPU time, wall time and peak memory of one run."""

    cpu_s: float
    wall_s: float
    peak: int


def _measure(run: Callable[[], object]) -> Cost:
    gc.collect()
    gc.disable()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # reset the peak
        wall, cpu = time.perf_counter(), time.process_time()
        run()
        return Cost(time.process_time() - cpu, time.perf_counter() - wall, _peak_memory())
    finally:
        gc.enable()


def _plain_dynamo(model: nn.Module, inputs: Any, path: Path) -> None:
    args, kwargs = ((), inputs) if isinstance(inputs, dict) else (inputs, None)
    torch.onnx.export(model, args, str(path), kwargs=kwargs, verbose=False, external_data=False)


def _plain_torchscript(model: nn.Module, inputs: Any, path: Path) -> None:
    """Models with keyword arguments are exported as a function of their tensors, as `htp` does."""
    if not isinstance(inputs, dict):
        torch.onnx.export(model, inputs, str(path), dynamo=False)
        return
    original = model.forward

    def forward(*tensors: torch.Tensor) -> Any:
        result = original(**dict(zip(inputs, tensors, strict=True)))
        return tuple(value for value in result.values() if isinstance(value, torch.Tensor))

    model.forward = forward
    try:
        torch.onnx.export(model, tuple(inputs.values()), str(path), dynamo=False, input_names=list(inputs))
    finally:
        del model.forward


def _load_and_run(model: nn.Module, inputs: Any, path: Path) -> None:
    """Load a file in onnxruntime and run it, and run the model in PyTorch."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    tensors = list(inputs.values()) if isinstance(inputs, dict) else list(inputs)
    session.run(None, {v.name: t.numpy() for v, t in zip(session.get_inputs(), tensors, strict=True)})
    with torch.no_grad():
        model(**inputs) if isinstance(inputs, dict) else model(*inputs)


PLAIN = {"fx": _plain_dynamo, "htp": _plain_torchscript, "usage_based": _plain_dynamo}


def compare(build: Callable[[], tuple[nn.Module, Any]], strategy: str, rounds: int, folder: Path) -> dict[str, float]:
    torch.manual_seed(0)
    model, inputs = build()
    model.eval()

    written = {"plain": folder / "plain.onnx", "ours": folder / "ours.onnx", "checked": folder / "ours.onnx"}

    def ours(check: str) -> None:
        modelexport.export_model(
            model, inputs, written["ours"], strategy=strategy, external_data=False, overwrite=True, check=check
        )

    runs: dict[str, Callable[[], object]] = {
        "plain": lambda: PLAIN[strategy](model, inputs, written["plain"]),
        "ours": lambda: ours("off"),
        "checked": lambda: ours("run"),
        "load_and_run": lambda: _load_and_run(model, inputs, written["ours"]),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in runs}
    for name in ("plain", "checked", "load_and_run"):
        runs[name]()
    for number in range(max(rounds, MOST_ROUNDS)):
        if number >= rounds and sum(cost.wall_s for name in ("plain", "ours") for cost in costs[name]) > ENOUGH_S:
            break
        for name in runs if number % 2 == 0 else reversed(runs):
            if name in written:
                # Plain export reuses the memory of a file that it overwrites; ours keeps that file until the end.
                written[name].unlink()
            costs[name].append(_measure(runs[name]))
    return _summary(costs, LIMITS.get(strategy))


def _summary(costs: Mapping[str, Sequence[Cost]], limits: Limits | None) -> dict[str, float]:
    medians = {name: Cost(*map(statistics.median, zip(*found, strict=True))) for name, found in costs.items()}
    pairs = [*zip(costs["plain"], costs["ours"], strict=True)]
    plain, ours = medians["plain"], medians["ours"]
    return {
        "plain_s": plain.cpu_s,
        "ours_s": ours.cpu_s,
        "time_ratio": statistics.median(o.cpu_s / p.cpu_s for p, o in pairs),
        "wall_ratio": statistics.median(o.wall_s / p.wall_s for p, o in pairs),
        "plain_mb": plain.peak / 1e6,
        "ours_mb": ours.peak / 1e6,
        "memory_ratio": ours.peak / plain.peak,
        "checked_s": medians["checked"].wall_s,
        "checked_limit_s": CHECK_FACTOR * (ours.wall_s + medians["load_and_run"].wall_s)
        + (limits.start_s if limits is not None else 0.0),
    }


def exceeded(found: Mapping[str, float], limits: Limits) -> list[str]:
    """What exceeds its limit."""
    constant = limits.constant_s / found["plain_s"]
    values = {
        "time": (found["time_ratio"], limits.time + constant),
        # Rounded: the peaks of two runs of the same export differ in the fourth digit.
        "memory": (round(found["memory_ratio"], 2), limits.memory),
        "time with the check": (found["checked_s"], found["checked_limit_s"]),
    }
    return [f"{name} {value:.3f} > {limit:.3f}" for name, (value, limit) in values.items() if value > limit]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strategies", nargs="+", default=list(PLAIN), choices=list(PLAIN))
    parser.add_argument("--write", type=Path, help="the Markdown page whose table is replaced")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows, problems = [], []
    with tempfile.TemporaryDirectory() as folder, quiet():
        for strategy, (name, build) in itertools.product(arguments.strategies, MODELS.items()):
            found = compare(build, strategy, arguments.rounds, Path(folder))
            if strategy in LIMITS:
                problems += [f"{strategy}, {name}: {problem}" for problem in exceeded(found, LIMITS[strategy])]
            rows.append((strategy, name, *(f"{found[key]:.{digits}f}" for key, (_, digits) in COLUMNS.items())))
            print(*rows[-1], sep=" | ", flush=True)
    if arguments.write is not None:
        versions = f"torch {torch.__version__}, modelexport {modelexport.__version__}"
        versions += f", one thread, medians of {arguments.rounds} rounds or more"
        head = ("strategy", "model", *(title for title, _ in COLUMNS.values()))
        replace_part(arguments.write, "export_overhead", f"{versions}\n\n{table(head, rows)}")
    print(*problems or ["all limits are kept"], sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
