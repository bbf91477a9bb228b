"""Measure our export against plain `torch.onnx.export`: the ratios of time and of peak memory.

Both run in one process, alternating, after a warm-up of each. The result is the median of the ratios of the rounds, so
that other load on the machine affects both sides. Small models get more rounds. torch has one thread: with more, a
small model spends most of its time on waiting between threads. As in `timeit`, the garbage collector is off during a
run: a full collection takes 0.3 s with torch loaded, and whether one falls into a run depends on a threshold that both
sides come close to. Run with ``make benchmark``, or
``python -m benchmarks.export_overhead --rounds 7 --write docs/measurements/export-overhead.md``.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from benchmarks.pages import replace_part, table
from benchmarks.quiet import quiet
from torch import nn

import modelexport

TIME_LIMIT = 1.15
MEMORY_LIMIT = 1.05
# Rounds are added until all runs together took this long, up to MOST_ROUNDS.
ENOUGH_S = 6.0
MOST_ROUNDS = 40
# What is measured: the title of its column, and how many digits are shown.
COLUMNS = {
    "plain_s": ("plain (s)", 3),
    "ours_s": ("ours (s)", 3),
    "time_ratio": ("time ratio", 3),
    "plain_mb": ("plain peak (MB)", 0),
    "ours_mb": ("ours peak (MB)", 0),
    "memory_ratio": ("memory ratio", 3),
    "checked_s": ("with check (s)", 3),
    "checked_limit_s": ("limit (s)", 3),
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


def _measure(run: Callable[[], object]) -> tuple[float, int]:
    gc.collect()
    gc.disable()
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # reset the peak
        start = time.perf_counter()
        run()
        return time.perf_counter() - start, _peak_memory()
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
# It also runs the model and the graph: measured, without a limit.
UNLIMITED = {"usage_based"}


def compare(build: Callable[[], tuple[nn.Module, Any]], strategy: str, rounds: int, folder: Path) -> dict[str, float]:
    torch.manual_seed(0)
    model, inputs = build()
    model.eval()

    def plain() -> None:
        PLAIN[strategy](model, inputs, folder / "plain.onnx")

    def ours(check: str = "off") -> None:
        modelexport.export_model(
            model, inputs, folder / "ours.onnx", strategy=strategy, external_data=False, overwrite=True, check=check
        )

    def checked() -> None:
        ours("run")

    def load_and_run() -> None:
        _load_and_run(model, inputs, folder / "ours.onnx")

    times: dict[str, list[float]] = {"plain": [], "ours": [], "checked": [], "load_and_run": []}
    peaks: dict[str, list[int]] = {name: [] for name in times}
    plain()
    checked()
    load_and_run()
    for number in range(max(rounds, MOST_ROUNDS)):
        if number >= rounds and sum(times["plain"]) + sum(times["ours"]) > ENOUGH_S:
            break
        order: list[tuple[str, Callable[[], object]]] = [("plain", plain), ("ours", ours)]
        order += [("checked", checked), ("load_and_run", load_and_run)]
        for name, run in order if number % 2 == 0 else reversed(order):
            seconds, peak = _measure(run)
            times[name].append(seconds)
            peaks[name].append(peak)
    medians = {name: statistics.median(values) for name, values in times.items()}
    memory = {name: statistics.median(values) for name, values in peaks.items()}
    return {
        "plain_s": medians["plain"],
        "ours_s": medians["ours"],
        "time_ratio": statistics.median(o / p for o, p in zip(times["ours"], times["plain"], strict=True)),
        "plain_mb": memory["plain"] / 1e6,
        "ours_mb": memory["ours"] / 1e6,
        "memory_ratio": memory["ours"] / memory["plain"],
        "checked_s": medians["checked"],
        "checked_limit_s": CHECK_FACTOR * (medians["ours"] + medians["load_and_run"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strategies", nargs="+", default=list(PLAIN), choices=list(PLAIN))
    parser.add_argument("--write", type=Path, help="the Markdown page whose table is replaced")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    good = True
    with tempfile.TemporaryDirectory() as folder, quiet():
        for strategy, (name, build) in itertools.product(arguments.strategies, MODELS.items()):
            found = compare(build, strategy, arguments.rounds, Path(folder))
            kept = found["time_ratio"] <= TIME_LIMIT and found["memory_ratio"] <= MEMORY_LIMIT
            kept &= found["checked_s"] <= found["checked_limit_s"]
            good &= kept or strategy in UNLIMITED
            rows.append((strategy, name, *(f"{found[key]:.{digits}f}" for key, (_, digits) in COLUMNS.items())))
            print(*rows[-1], sep=" | ", flush=True)
    if arguments.write is not None:
        versions = f"torch {torch.__version__}, modelexport {modelexport.__version__}"
        versions += f", one thread, medians of {arguments.rounds} rounds or more"
        head = ("strategy", "model", *(title for title, _ in COLUMNS.values()))
        replace_part(arguments.write, "export_overhead", f"{versions}\n\n{table(head, rows)}")
    print(f"limits: time {TIME_LIMIT}, memory {MEMORY_LIMIT}: {'kept' if good else 'EXCEEDED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
