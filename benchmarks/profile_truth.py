"""Measure whether `modelexport profile` tells the truth, and what it costs.

    python -m benchmarks.profile_truth [--only owners|slow|submodels|cost|noise] [--write docs/measurements/profile.md]

Every number is a ratio, a count or a rank: times of a busy machine are not comparable, and none is asserted in a test.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.pages import replace_part, table
from benchmarks.quiet import quiet
from tests.support import nine, torchvision_ops, zoo
from tests.support.plain import fresh_generated_code
from tests.support.profile_check import violations
from torch import nn

import modelexport
from modelexport.ort import OPTIMIZATION_LEVELS
from modelexport.profiling import compare_profiles, profile_both
from modelexport.verification import feeds_of_file

_TIMM = ("resnet18", "vit_tiny_patch16_224", "mobilenetv3_small_050")
_KINDS = ("exact", "fused", "merged", "folded", "inferred", "unmatched")
_REPEATS = 20
_COST_ROUNDS = 9


def models() -> Iterator[tuple[str, nn.Module, Any]]:
    """The test models, the nine of transformers, and three of timm."""
    for name in zoo.names():
        example = zoo.build(name)
        yield name, example.model, example.inputs
    for name in nine.NAMES:
        example = nine.build(name)
        yield f"nine: {name}", example.model, example.inputs
    # Installed apart from the other packages.
    sys.path.append(str(Path(sys.prefix, "apart")))
    declarations = torchvision_ops.declare()
    for name in _TIMM:
        sourced = modelexport.load_model(f"timm:{name}", modelexport.LoadOptions(random_weights=True))
        yield f"timm: {name}", sourced.model, modelexport.choose_inputs(sourced).inputs
    del declarations


def owners(folder: Path) -> Iterator[tuple[object, ...]]:
    """For each model and optimization level the kernels by kind of their owner, and what does not hold."""
    for number, (name, model, inputs) in enumerate(models()):
        path = folder / f"model-{number}.onnx"
        fresh_generated_code()
        modelexport.export_model(model, inputs, path)
        feeds = feeds_of_file(path, model, inputs)
        for level in OPTIMIZATION_LEVELS:
            report = modelexport.profile(path, feeds, optimization=level, warmup=1, runs=3, threads=1)
            kinds = Counter(kernel.kind for kernel in report.kernels)
            wrong = violations(report)
            overhead = f"{report.overhead_share:.0%}"
            yield (name, level, len(report.kernels), *(kinds[kind] for kind in _KINDS), overhead, "; ".join(wrong) or 0)


class Block(nn.Module):
    """Two small products around a wide one, whose width is what makes it slow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.Linear(64, 64)
        self.mlp = nn.Sequential(nn.Linear(64, width), nn.GELU(), nn.Linear(width, 64))
        self.norm = nn.LayerNorm(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.mlp(self.attention(x)))


class Stack(nn.Module):
    """Blocks of which the third is slow."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Block(16384 if number == 2 else 128) for number in range(6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class ConvBlock(nn.Module):
    """A residual block whose width is what makes it slow."""

    def __init__(self, width: int) -> None:
        super().__init__()
        inner = nn.Conv2d(width, width, 3, padding=1)
        self.mlp = nn.Sequential(nn.Conv2d(16, width, 1), nn.ReLU(), inner, nn.ReLU(), nn.Conv2d(width, 16, 1))
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.norm(self.mlp(x)))


class ConvStack(nn.Module):
    """Convolutional blocks of which the third is slow: onnxruntime changes their memory layout and renames tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(ConvBlock(256 if number == 2 else 16) for number in range(6)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def slow(folder: Path) -> Iterator[tuple[object, ...]]:
    """How often the slow module is named first, among the calls of its depth, by total and by own time."""
    inputs = {"products": (Stack(), torch.randn(1, 32, 64)), "convolutions": (ConvStack(), torch.randn(1, 16, 16, 16))}
    for name, (model, example) in inputs.items():
        path = folder / f"{name}.onnx"
        modelexport.export_model(model.eval(), (example,), path)
        for level in OPTIMIZATION_LEVELS:
            first = own = 0
            fused = 0
            for _ in range(_REPEATS):
                report = modelexport.profile(path, optimization=level, warmup=1, runs=5)
                by_total = [row.name for row in report.rows("module", sort="total") if row.name.count(".") == 2]
                first += by_total[0] == "layers.2.mlp"
                own += report.rows("module")[0].name.startswith("layers.2.mlp")
                fused = sum(k.call.startswith("layers.2.mlp") and k.kind != "exact" for k in report.kernels)
            yield name, level, f"{first} of {_REPEATS}", f"{own} of {_REPEATS}", fused


def bert(layers: int, hidden: int, tokens: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=1000,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=4 * hidden,
    )
    return BertModel(config).eval(), {"input_ids": torch.randint(0, 1000, (1, tokens))}


def submodels(folder: Path) -> Iterator[tuple[object, ...]]:
    """The rank correlation of total times with those of the extracted submodels, each run alone without a profile."""
    path = folder / "bert.onnx"
    model, inputs = bert(12, 256, 128)
    modelexport.export_model(model, inputs, path)
    extracted = modelexport.extract_modules(path, "**", folder / "submodels")
    for level in ("off", "basic", "all"):
        report = modelexport.profile(path, optimization=level, runs=_REPEATS, threads=1)
        alone = {one.call: seconds_alone(folder / "submodels" / one.file, level) for one in extracted.submodels}
        times = [(report[call].total.median, seconds) for call, seconds in alone.items() if report[call].total.median]
        yield level, len(times), f"{rank_correlation(times):.3f}"


def seconds_alone(path: Path, level: str) -> float:
    """The median wall-clock time of a file in a session without a profiler, on inputs of zeros and ones."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, OPTIMIZATION_LEVELS[level])
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
    feeds = {value.name: np.ones(value.shape, types[value.type]) for value in session.get_inputs()}
    seconds = []
    for _ in range(_REPEATS):
        begin = time.perf_counter()
        session.run(None, feeds)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def rank_correlation(pairs: list[tuple[float, float]]) -> float:
    """Spearman's: the correlation of the ranks."""
    ranks = [np.argsort(np.argsort(values)) for values in zip(*pairs, strict=True)]
    return float(np.corrcoef(ranks)[0, 1])


def cost(folder: Path) -> Iterator[tuple[object, ...]]:
    """CPU seconds of a profile of 20 runs of a BERT with 24 layers: the runs, the rest of the process, and reading.

    The rest of the child process is its start, loading, the first run, and writing the profile. The last column is the
    same ratio of wall-clock time, in which the two processes work at the same time where they can.
    """
    for hidden, tokens in ((64, 16), (128, 48), (128, 64), (256, 128)):
        path = folder / f"bert-{hidden}-{tokens}.onnx"
        model, inputs = bert(24, hidden, tokens)
        modelexport.export_model(model, inputs, path)
        modelexport.profile(path, warmup=0, runs=1, threads=1)
        # The fastest, as `timeit` does: others slow a profile down and never speed it up.
        _, kernels, runs, process, reading, wall = min(_cost(path) for _ in range(_COST_ROUNDS))
        name = f"hidden size {hidden}, {tokens} tokens"
        shown = (f"{number:.2f}" for number in (runs, process, reading, (process + reading) / runs, wall))
        yield name, kernels, f"{runs / _REPEATS * 1e3:.1f}", *shown


def _cost(path: Path) -> tuple[float, int, float, float, float, float]:
    """What a profile costs.

    Returns:
        Its seconds; its kernels; the CPU seconds of 20 runs, of the rest of the child process, and of this one; and the
        wall-clock time of the rest by that of the runs.
    """
    after_run: list[float] = []
    started = time.perf_counter()
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.process_time()
    report = modelexport.profile(
        path, warmup=1, runs=_REPEATS, threads=1, progress=lambda done, total: after_run.append(_cpu_of_child())
    )
    reading, after = time.process_time() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    child = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    runs, run_time = after_run[-1] - after_run[0], sum(report.session.seconds)
    seconds = time.perf_counter() - started
    return seconds, len(report.kernels), runs, child - runs, reading, (seconds - run_time) / run_time


def _cpu_of_child() -> float:
    """The CPU seconds of the child process so far."""
    (child,) = Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="utf-8").split()
    # As clock_getcpuclockid of Linux computes it.
    return time.clock_gettime(~int(child) << 3 | 2)


def noise(folder: Path) -> Iterator[tuple[object, ...]]:
    """How many calls count as changed where nothing changed, in turns and one after the other."""
    path = folder / "same.onnx"
    model, inputs = bert(4, 128, 32)
    modelexport.export_model(model, inputs, path)
    calls = 0
    turns, sequence = Counter[str](), Counter[str]()
    for _ in range(_REPEATS):
        in_turns = compare_profiles(*profile_both(path, path), in_turns=True)
        after = compare_profiles(modelexport.profile(path), modelexport.profile(path))
        calls += len(after.calls)
        turns.update(change.verdict for change in in_turns.calls)
        sequence.update(change.verdict for change in after.calls)
    for name, found in (("in turns", turns), ("one after the other", sequence)):
        changed = found["slower"] + found["faster"]
        yield name, calls, changed, f"{changed / calls:.1%}"


_PARTS: dict[str, tuple[tuple[str, ...], Callable[[Path], Iterator[tuple[object, ...]]]]] = {
    "owners": (("model", "optimization", "kernels", *_KINDS, "overhead", "violations"), owners),
    "slow": (("model", "optimization", "named first by total", "named first by own time", "kernels not exact"), slow),
    "submodels": (("optimization", "modules", "rank correlation"), submodels),
    "cost": (
        (
            "model",
            "kernels",
            "a run, ms",
            "20 runs, s",
            "rest of the process, s",
            "reading and owners, s",
            "rest by runs",
            "wall clock",
        ),
        cost,
    ),
    "noise": (("measured", "calls", "changed", "rate"), noise),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=list(_PARTS))
    parser.add_argument("--write", type=Path, help="the Markdown page whose tables are replaced")
    options = parser.parse_args()
    found: dict[str, str] = {}
    for name, (head, measure) in _PARTS.items():
        if options.only in (None, name):
            rows = []
            with tempfile.TemporaryDirectory() as folder, quiet():
                for row in measure(Path(folder)):
                    print(name, *row, sep=" | ", flush=True)
                    rows.append(row)
            found[name] = table(head, rows)
    if options.write is not None:
        for name, text in found.items():
            replace_part(options.write, name, text)


if __name__ == "__main__":
    main()
