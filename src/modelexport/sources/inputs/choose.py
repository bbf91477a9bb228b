"""Choose the example inputs of a model: given ones, else those of its source, else synthesized ones."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from modelexport.errors import InputError, ModelExportError
from modelexport.sources.inputs.from_files import fill_shapes, read_inputs
from modelexport.sources.inputs.from_processor import process, read_raw_inputs
from modelexport.sources.inputs.synthesis import ModelFacts, complete_inputs, describe, synthesize_inputs
from modelexport.sources.loaders import SourcedModel
from modelexport.storage import ModelFile
from modelexport.torch_support import check_model


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
    onnx_file: str | Path | None = None,
) -> ChosenInputs:
    """Choose the example inputs of a model as the command line does.

    The first of these that is available: inputs from a file, tensors of the given shapes, texts, images and audio files
    through the model's own processor, the example inputs of the model's source, and synthesized inputs.

    Args:
        source: A model, or the result of `load_model`.
        file: An ``.npz`` or ``.json`` file with the inputs by name.
        shapes: One input each, as ``name=1x16`` or ``name=1x16:int64``; without the name for a model with one input.
        texts: Texts for the model's tokenizer.
        images: Image files for the model's image processor.
        audio: Audio files for the model's feature extractor.
        onnx_file: An exported file of the model: synthesized inputs have its sizes and types.

    Raises:
        InputError: The given inputs cannot be used, or no inputs could be synthesized.
    """
    sourced = source if isinstance(source, SourcedModel) else SourcedModel(source)
    check_model(sourced.model)
    if file is not None and not isinstance(file, str | os.PathLike):
        raise InputError(f"file is a {type(file).__name__}: give the path of an .npz or .json file")
    given_shapes = _entries("shapes", shapes, "texts such as name=1x16", str)
    given_texts = _entries("texts", texts, "texts", str)
    image_files = _entries("images", images, "paths of image files", str, os.PathLike)
    audio_files = _entries("audio", audio, "paths of audio files", str, os.PathLike)
    if file is not None:
        return ChosenInputs(read_inputs(Path(file)))
    if given_shapes:
        return ChosenInputs(fill_shapes(given_shapes, ModelFacts.read(sourced.model)))
    if given_texts or image_files or audio_files:
        return _processed(sourced, given_texts, list(map(Path, image_files)), list(map(Path, audio_files)))
    if sourced.example_inputs is not None:
        return ChosenInputs(sourced.example_inputs)
    processor, notes = None, []
    try:
        processor = None if sourced.processor is None else sourced.processor()
    except ModelExportError as error:
        # Inputs can still be synthesized without it.
        notes.append(f"note: {error}")
    exported = None if onnx_file is None else ModelFile(onnx_file)
    inputs = synthesize_inputs(sourced.model, processor, file=exported).inputs
    return ChosenInputs(inputs, (*notes, f"inputs synthesized: {describe(inputs) or 'none'}"))


def _entries(name: str, given: object, wanted: str, *kinds: type) -> list[Any]:
    """An argument with several entries as a list; a text is not a list of its characters."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise InputError(f"{name} is a {type(given).__name__}: give a list of {wanted}")
    entries = list(given)
    for entry in entries:
        if not isinstance(entry, kinds):
            raise InputError(f"{name} has a {type(entry).__name__}: give a list of {wanted}")
    return entries


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
