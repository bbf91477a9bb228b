"""What was shown of an exported file: that onnxruntime loads it, runs it, and gives PyTorch's results."""

from __future__ import annotations

import enum

import msgspec

# How much of a file is checked: run it and compare its results, load it only, or nothing.
CHECK_LEVELS = ("run", "load", "off")
# Files with more bytes of weights are loaded only, so that the check stays quick.
DEFAULT_CHECK_BYTES = 2**30
# What the description of inputs with other values begins with.
PROBE = "probe "


class CheckOutcome(enum.StrEnum):
    """The outcome of a check, the best first.

    ``equal``: the file runs and gives PyTorch's results on the example inputs. ``nondeterministic``: it runs, and
    PyTorch's own results change with the random state. ``unstable``: it runs, and PyTorch's own results change as much
    with rounding. ``not_compared``: it runs, and not all of its outputs could be compared. ``loaded``: onnxruntime
    loads it; it was not run. ``unchecked``: it was not loaded. ``no_kernel``: onnxruntime has no kernel for an operator
    on this machine. ``equal_unoptimized``: it gives PyTorch's results only where onnxruntime does not optimize it.
    ``different``: it runs and gives other results. ``run_failed``: onnxruntime loads it but cannot run it.
    ``load_failed``: it cannot load it.
    """

    EQUAL = "equal"
    NONDETERMINISTIC = "nondeterministic"
    UNSTABLE = "unstable"
    NOT_COMPARED = "not_compared"
    LOADED = "loaded"
    UNCHECKED = "unchecked"
    NO_KERNEL = "no_kernel"
    EQUAL_UNOPTIMIZED = "equal_unoptimized"
    DIFFERENT = "different"
    RUN_FAILED = "run_failed"
    LOAD_FAILED = "load_failed"


_ORDER = {outcome: position for position, outcome in enumerate(CheckOutcome)}
_WRONG = (
    CheckOutcome.EQUAL_UNOPTIMIZED,
    CheckOutcome.DIFFERENT,
    CheckOutcome.RUN_FAILED,
    CheckOutcome.LOAD_FAILED,
)


class FileCheck(msgspec.Struct, frozen=True, omit_defaults=True):
    """The check of an exported file.

    Attributes:
        outcome: The outcome.
        reason: Why it is not ``equal``.
        output: The output with the largest error, relative to the tolerance.
        error: The largest absolute error of an element of that output; None if it is infinite or was not measured.
        rtol: The relative tolerance of that output.
        atol: Its absolute tolerance.
        call: Where the file is wrong, the module call in which the error begins, if it was found.
        compared: Other inputs on which it equals PyTorch, such as ``batch=5``.
        not_compared: Why it was not compared on others that it claims to take.
        outside: What it does just outside of the sizes for which it is valid.
    """

    outcome: CheckOutcome
    reason: str = ""
    output: str | None = None
    error: float | None = None
    rtol: float | None = None
    atol: float | None = None
    call: str | None = None
    compared: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()

    @property
    def is_wrong(self) -> bool:
        """Whether the file was shown to be wrong."""
        return self.outcome in _WRONG

    @property
    def is_proven(self) -> bool:
        """Whether it equals PyTorch on inputs of other values: on one at least, and on all that PyTorch takes."""
        equal, unclear = (any(text.startswith(PROBE) for text in texts) for texts in (self.compared, self.not_compared))
        return self.outcome is CheckOutcome.EQUAL and equal and not unclear

    @property
    def rank(self) -> tuple[int, float]:
        """The order of checks: the best first, of two different files the one with the smaller error."""
        error = self.error if self.outcome is CheckOutcome.DIFFERENT else 0.0
        return _ORDER[self.outcome], float("inf") if error is None else error

    def __str__(self) -> str:
        begins = "the error begins in" if self.outcome is CheckOutcome.DIFFERENT else "the node is in"
        where = "" if self.call is None else f"; {begins} {self.call or 'the model itself'}"
        if self.outcome is CheckOutcome.EQUAL:
            measured = "" if self.error is None else f" (largest error {self.error:.2g}, in {self.output})"
            also = f", also with {'; '.join(self.compared)}" if self.compared else ""
            but = f"; not compared at other sizes: {'; '.join(self.not_compared)}" if self.not_compared else ""
            outside = "".join(f"; {text}" for text in self.outside)
            return f"runs in onnxruntime and equals PyTorch{measured}{also}{but}{outside}"
        return f"{_TEXTS[self.outcome]}{': ' if self.reason else ''}{self.reason}{where}"


_TEXTS = {
    CheckOutcome.NONDETERMINISTIC: "runs in onnxruntime; not compared with PyTorch",
    CheckOutcome.UNSTABLE: "runs in onnxruntime; its results differ from PyTorch's, whose own change as much",
    CheckOutcome.NOT_COMPARED: "runs in onnxruntime; not all of its outputs were compared with PyTorch",
    CheckOutcome.LOADED: "onnxruntime loads it; not run",
    CheckOutcome.UNCHECKED: "not checked in onnxruntime",
    CheckOutcome.NO_KERNEL: "onnxruntime cannot run it on this machine",
    CheckOutcome.EQUAL_UNOPTIMIZED: "equals PyTorch only without onnxruntime's own optimizations",
    CheckOutcome.DIFFERENT: "its results in onnxruntime are not PyTorch's",
    CheckOutcome.RUN_FAILED: "onnxruntime loads it and cannot run it",
    CheckOutcome.LOAD_FAILED: "onnxruntime rejects it",
}
