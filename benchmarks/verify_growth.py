"""How the cost of `verify` grows with the model: CPU time on chains of equal blocks, four module calls each."""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
from pathlib import Path

import torch

import modelexport


class Block(torch.nn.Module):
    """Three modules in a row, with a residual connection around them."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(size, size)
        self.act = torch.nn.GELU()
        self.norm = torch.nn.LayerNorm(size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run the block."""
        return x + self.norm(self.act(self.linear(x)))


def cpu_seconds() -> float:
    """CPU time of this process and of its ended children."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def verify_seconds(path: Path, model: torch.nn.Module, inputs: torch.Tensor) -> tuple[float, int]:
    """The CPU time of one verification, and how many calls it compared."""
    before = cpu_seconds()
    report = modelexport.verify_modules(path, model, inputs)
    return cpu_seconds() - before, len(report.calls)


def main() -> None:
    """Print the CPU time by chain length, and the ratio of the longest to the shortest."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, nargs="+", default=[100, 200, 400])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(2, 16)
    seconds: dict[int, list[float]] = {blocks: [] for blocks in options.blocks}
    with tempfile.TemporaryDirectory() as folder:
        models = {blocks: torch.nn.Sequential(*(Block(16) for _ in range(blocks))).eval() for blocks in options.blocks}
        paths = {blocks: Path(folder) / f"chain-{blocks}.onnx" for blocks in options.blocks}
        for blocks, model in models.items():
            modelexport.export_model(model, inputs, paths[blocks], strategy="htp")
        for _ in range(options.rounds):
            for blocks, model in models.items():
                taken, calls = verify_seconds(paths[blocks], model, inputs)
                seconds[blocks].append(taken)
                print(f"{blocks} blocks, {calls} calls: {taken:.2f} s of CPU time", flush=True)
    medians = {blocks: statistics.median(taken) for blocks, taken in seconds.items()}
    first, last = min(medians), max(medians)
    print(f"{last} blocks take {medians[last] / medians[first]:.2f} times the CPU time of {first} (median)")


if __name__ == "__main__":
    main()
