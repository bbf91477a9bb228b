"""Attempts of an export as data: how each differs from a plain call of its exporter, and how it ended."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Variant:
    """How an attempt differs from the first attempt with the same exporter.

    Attributes:
        unwatched: The exporter runs without the parts of the recorder that can change how it behaves: hooks on modules
            (`fx`), or questions to the tracer (`htp`).
        constant_values: The trace computes values that depend on no input, so that Python code of the model can read
            them.
        constants_folded: With `constant_values`, the graph has these values, and not the operators that compute them.
        input_values: With `constant_values`, the trace computes all values of the example inputs: those that code reads
            become constants.
        without_gradients: The model is traced without gradients. With them torch may choose another attention kernel
            for the trace than where it decomposes that trace, and views of the result fail where its strides differ.
        tensors_only: The model is exported as a function from tensors to tensors.
        unoptimized: torch does not optimize the graph, because onnxruntime rejects the optimized one or its results are
            wrong.
        decomposed: The operators that torch's own decompositions replace, because the exporter cannot translate them.
    """

    unwatched: bool = False
    constant_values: bool = False
    constants_folded: bool = False
    input_values: bool = False
    without_gradients: bool = False
    tensors_only: bool = False
    unoptimized: bool = False
    decomposed: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = ["unwatched"] if self.unwatched else []
        if self.input_values:
            parts.append("with the values of the inputs")
        elif self.constant_values:
            parts.append("with constants computed" if self.constants_folded else "with the values of constants")
        parts += ["without gradients"] if self.without_gradients else []
        parts += ["as a function of tensors"] if self.tensors_only else []
        parts += ["not optimized by torch"] if self.unoptimized else []
        parts += [f"with substitutes for {', '.join(self.decomposed)}"] if self.decomposed else []
        return ", ".join(parts)


PLAIN = Variant()


@dataclasses.dataclass(frozen=True)
class AttemptReport:
    """An attempt to export a model with one strategy, exporter and variant.

    Attributes:
        strategy: The strategy.
        exporter: The exporter.
        reason: Why this attempt was made.
        error: Why it failed, was not made, or its file was not used; None for the attempt whose file was written.
        variant: How it differs from the first attempt with that exporter; empty for the first.
        seconds: The time that it took.
        tried: False where it was not made.
        output: What libraries printed meanwhile, shortened.
    """

    strategy: str
    exporter: str
    reason: str
    error: str | None = None
    variant: str = ""
    seconds: float = 0.0
    tried: bool = True
    output: str = ""

    @property
    def name(self) -> str:
        """Strategy, exporter and variant as text."""
        return f"{self.strategy} ({', '.join(filter(None, (self.exporter, self.variant)))})"
