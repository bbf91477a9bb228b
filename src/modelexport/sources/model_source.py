"""A MODEL argument to a model: the built-in one, or `package.module:factory`."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Any

import torch

from modelexport.errors import ModelExportError, ModelSourceError
from modelexport.sources.builtin import BUILTIN_PREFIX, build_builtin


@dataclasses.dataclass(frozen=True)
class SourcedModel:
    """A model, and example inputs where its source gives some."""

    model: torch.nn.Module
    example_inputs: Any | None = None


def load_model(reference: str) -> SourcedModel:
    """The model that a reference names.

    A factory is called without arguments and returns a `torch.nn.Module`, or a pair of one and its example
    inputs. An `nn.Module` that is already there is taken as it is.

    Raises:
        ModelSourceError: The reference leads to no model.
    """
    if reference.startswith(BUILTIN_PREFIX):
        return SourcedModel(*build_builtin(reference))
    module_name, colon, attribute = reference.partition(":")
    if not colon or not module_name or not attribute:
        raise ModelSourceError(
            f"{reference!r} names no model: write package.module:factory, "
            f"or {BUILTIN_PREFIX}bert-tiny for the built-in one"
        )
    made = _make(reference, _find(reference, module_name, attribute))
    model, inputs = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(model, torch.nn.Module):
        raise ModelSourceError(
            f"{reference} returned a {type(model).__name__}: a factory returns a torch.nn.Module, "
            "or a pair of one and its example inputs"
        )
    return SourcedModel(model, inputs)


def _find(reference: str, module_name: str, attribute: str) -> object:
    folder = str(Path.cwd())
    # As with `python -m`, modules of the working folder can be named.
    sys.path.insert(0, folder)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise ModelSourceError(
                f"{reference}: there is no Python module {error.name!r}; install it, or run from its folder"
            ) from error
        raise ModelSourceError(f"{reference}: importing {module_name} needs {error.name!r}: install it") from error
    except (Exception, SystemExit) as error:
        raise ModelSourceError(
            f"{reference}: importing {module_name} failed with {type(error).__name__}: {error}"
        ) from error
    finally:
        sys.path.remove(folder)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ModelSourceError(f"{reference}: {module_name} has no {attribute!r}; name a factory it defines")
        found = getattr(found, part)
    return found


def _make(reference: str, factory: object) -> object:
    if isinstance(factory, torch.nn.Module):
        return factory
    if not callable(factory):
        raise ModelSourceError(
            f"{reference} is a {type(factory).__name__}, not a factory: name a function or class that makes a model"
        )
    try:
        return factory()
    except ModelExportError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelSourceError(
            f"{reference}() failed with {type(error).__name__}: {error}; a factory is called without arguments"
        ) from error
