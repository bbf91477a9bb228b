"""Probes of the sweep's own: a file is run on other values than those that it was exported with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from benchmarks.sweep_judge import NOT_COMPARABLE, REFUSED, Call, Judge

PROBES = 2

Json = dict[str, Any]


def run_probes(path: Path, model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Json:
    """The outcome of the file on the example and on each probe."""
    example = Call(args, kwargs)
    judge = Judge(path, model, example)
    judge.eager(example)  # Raises if it cannot be compared at all.
    runs = [judge.run(example, "example")]
    for number in range(1, PROBES + 1):
        run: Json = {"inputs": f"probe {number}", "outcome": NOT_COMPARABLE, "detail": "there is nothing to change"}
        for call, changed in _probes(example, number):
            run = {**judge.run(call, f"probe {number}"), "changed": changed}
            if run["outcome"] != REFUSED:
                break
        runs.append(run)
    return {"mapped": "positions" if judge.maps_inputs_itself else "the package", "runs": runs}


def _probes(example: Call, number: int) -> Iterator[tuple[Call, str]]:
    """Inputs with other values, to be tried in order: all changed, floats alone, integers alone."""
    for kinds, changed in (((True, False), "all"), ((True,), "floats"), ((False,), "integers")):
        generator = torch.Generator().manual_seed(1000 + number)
        leaves = [
            _redrawn(leaf, generator, number)
            if isinstance(leaf, torch.Tensor) and leaf.numel() and leaf.is_floating_point() in kinds
            else leaf
            for leaf in example.leaves()
        ]
        if any(
            isinstance(leaf, torch.Tensor) and not torch.equal(leaf, other)
            for leaf, other in zip(leaves, example.leaves(), strict=True)
        ):
            yield example.with_leaves(leaves), changed


def _redrawn(tensor: torch.Tensor, generator: torch.Generator, number: int) -> torch.Tensor:
    """Other values of the same distribution: integers and flags are permuted, other floats drawn anew."""
    if tensor.is_complex():
        return tensor * (0.5 + number / 8)
    flat = tensor.detach().flatten()
    if not tensor.is_floating_point() or len(flat.unique()) <= 2:
        return _permuted(flat, generator, number).reshape(tensor.shape)
    mean = flat.mean()
    drawn = mean + flat.std() * torch.randn(flat.shape, generator=generator)
    # Of a like range, so that coordinates in 0…1 stay there, but with other extremes.
    drawn = mean + (0.95 - number / 20) * (drawn.clamp(flat.min(), flat.max()) - mean)
    return drawn.to(tensor.dtype).reshape(tensor.shape)


def _permuted(flat: torch.Tensor, generator: torch.Generator, number: int) -> torch.Tensor:
    if not bool((flat == flat[0]).all()):
        return flat[torch.randperm(len(flat), generator=generator)]
    changed = flat.clone()
    if len(flat) == 1 and flat.dtype != torch.bool:
        # A number, such as the step of a diffusion: a smaller one is valid too.
        changed[0] = flat[0] * (0.75 if number == 1 else 0.5) if flat[0] > 1 else 1 - flat[0]
    elif number % 2 == 0:
        # A mask that masks nothing, or the same id everywhere: the last quarter is masked, or has the first id.
        changed[-max(1, len(flat) // 4) :] = 1 if flat[0] == 0 else 0
    return changed
