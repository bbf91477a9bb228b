"""Choose the example inputs of a model: given ones, else those of its source, else synthesized ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from modelexport.errors import InputError, ModelExportError
from modelexport.sources.inputs.from_files import fill_shapes, read_inputs
from modelexport.sources.inputs.from_processor import process, read_raw_inputs
from modelexport.sources.inputs.synthesis import ModelFacts, complete_inputs, describe, make_example_inputs
from modelexport.sources.loaders import SourcedModel


@dataclasses.dataclass(frozen=True)
class ChosenInputs:
    """Example inputs with notes on their origin.

    Attributes:
        inputs: The example inputs, as `export_model` expects them.
        notes: Which of them were synthesized, and why the model's own processor was not used.
    """

    inputs: Any
    notes: tuple[str, ...] = ()


def choose_inputs(
    source: SourcedModel | torch.nn.Module,
    *,
    file: str | Path | None = None,
    shapes: Sequence[str] = (),
    texts: Sequence[str] = (),
    images: Sequence[str | Path] = (),
    audio: Sequence[str | Path] = (),
) -> ChosenInputs:
    """Choose the example inputs of a model as the command line does.

    The first of these that is available: inputs from a file, tensors of the given shapes, texts, images and audio files
    through the model's own processor, the example inputs of the model's source, and synthesized inputs.

    Args:
        source: A model, or the result of `load_model`.
        file: An ``.npz`` or ``.json`` file with the inputs by name.
        shapes: One input each, as ``name=1x16`` or ``name=1x16:int64``.
        texts: Texts for the model's tokenizer.
        images: Image files for the model's image processor.
        audio: Audio files for the model's feature extractor.

    Raises:
        InputError: The given inputs cannot be used, or no inputs could be synthesized.
    """
    sourced = source if isinstance(source, SourcedModel) else SourcedModel(source)
    if file is not None:
        return ChosenInputs(read_inputs(Path(file)))
    if shapes:
        return ChosenInputs(fill_shapes(list(shapes)))
    if texts or images or audio:
        return _processed(sourced, list(texts), [Path(path) for path in images], [Path(path) for path in audio])
    if sourced.example_inputs is not None:
        return ChosenInputs(sourced.example_inputs)
    processor, notes = None, []
    try:
        processor = None if sourced.processor is None else sourced.processor()
    except ModelExportError as error:
        # Inputs can still be synthesized without it.
        notes.append(f"note: {error}")
    inputs = make_example_inputs(sourced.model, processor)
    return ChosenInputs(inputs, (*notes, f"inputs synthesized: {describe(inputs) or 'none'}"))


def _processed(sourced: SourcedModel, texts: list[str], images: list[Path], audio: list[Path]) -> ChosenInputs:
    """Inputs from the model's own processor, completed with other arguments that forward requires."""
    processor = None if sourced.processor is None else sourced.processor()
    if processor is None:
        option = "--input-text" if texts else "--input-image" if images else "--input-audio"
        raise InputError(
            f"{option}: {type(sourced.model).__name__} has no tokenizer or processor; "
            "give --inputs file.npz or --input-shape name=1x16"
        )
    facts = ModelFacts.read(sourced.model)
    given = process(processor, read_raw_inputs(processor, texts, images, audio), facts.parameters, facts.dtype)
    inputs = complete_inputs(sourced.model, given)
    added = {name: inputs[name] for name in inputs if name not in given} if isinstance(inputs, dict) else {}
    return ChosenInputs(inputs, (f"inputs synthesized: {describe(added)}",) if added else ())
