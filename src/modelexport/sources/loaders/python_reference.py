"""Load a model from `package.module:factory` or `package.module:factory(arguments)`."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from modelexport.errors import ModelExportError, ModelSourceError
from modelexport.sources.loaders.sourced_model import SourcedModel


@dataclasses.dataclass(frozen=True)
class _Reference:
    """A parsed reference. Only one without parentheses (`is_call` is False) may name a model instead of a factory."""

    text: str
    module: str
    attribute: str
    is_call: bool = False
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)


def load_reference(reference: str) -> SourcedModel:
    """The model that a factory returns, or that the reference names itself.

    A factory returns a `torch.nn.Module`, or a pair of one and its example inputs. Its arguments are literals;
    nothing else is evaluated.

    Raises:
        ModelSourceError: The reference does not lead to a model.
    """
    parsed = _parse(reference)
    with _importable_working_folder():
        returned = _call(parsed, _import_attribute(parsed))
    model, inputs = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(model, torch.nn.Module):
        raise ModelSourceError(
            f"{reference} returned a {type(model).__name__}: a factory returns a torch.nn.Module, "
            "or a pair of one and its example inputs"
        )
    return SourcedModel(model, inputs)


def _parse(reference: str) -> _Reference:
    module, _, target = reference.partition(":")
    try:
        tree = ast.parse(target.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise _unreadable(reference) from error
    call = tree if isinstance(tree, ast.Call) else None
    attribute = _dotted(tree if call is None else call.func)
    if attribute is None or not all(part.isidentifier() for part in module.split(".")):
        raise _unreadable(reference)
    if call is None:
        return _Reference(reference, module, attribute)
    args = tuple(_literal(reference, argument) for argument in call.args)
    kwargs = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise _unreadable(reference)
        kwargs[keyword.arg] = _literal(reference, keyword.value)
    return _Reference(reference, module, attribute, True, args, kwargs)


def _unreadable(reference: str) -> ModelSourceError:
    return ModelSourceError(
        f"{reference!r} is not a reference to a model: write package.module:factory, or "
        "package.module:factory(64, name='a') with numbers, strings, tuples, lists and dictionaries as arguments"
    )


def _dotted(node: ast.expr) -> str | None:
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(names)])


def _literal(reference: str, node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ModelSourceError(
            f"{reference}: {ast.unparse(node)} is not a literal: arguments are numbers, strings, booleans, None, and "
            "tuples, lists and dictionaries of them"
        ) from error


@contextlib.contextmanager
def _importable_working_folder() -> Iterator[None]:
    """Make modules of the working folder importable, as `python -m` does, also by the factory while it runs."""
    folder = str(Path.cwd())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        # The imported code may have removed it already.
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _import_attribute(reference: _Reference) -> object:
    try:
        found: object = importlib.import_module(reference.module)
    except ModuleNotFoundError as error:
        if error.name is not None and (reference.module == error.name or reference.module.startswith(f"{error.name}.")):
            raise ModelSourceError(
                f"{reference.text}: there is no Python module {error.name!r}; install it, or run from its folder"
            ) from error
        raise ModelSourceError(
            f"{reference.text}: importing {reference.module} needs {error.name!r}: install it"
        ) from error
    except (Exception, SystemExit) as error:
        raise ModelSourceError(
            f"{reference.text}: importing {reference.module} failed with {type(error).__name__}: {error}"
        ) from error
    for part in reference.attribute.split("."):
        if not hasattr(found, part):
            raise ModelSourceError(
                f"{reference.text}: {reference.module} has no {reference.attribute!r}; name a factory it defines"
            )
        found = getattr(found, part)
    return found


def _call(reference: _Reference, factory: object) -> object:
    if isinstance(factory, torch.nn.Module) and not reference.is_call:
        return factory
    if not callable(factory) or isinstance(factory, torch.nn.Module):
        raise ModelSourceError(
            f"{reference.text} is a {type(factory).__name__}, not a factory: "
            "name a function or class that returns a model"
        )
    try:
        return factory(*reference.args, **reference.kwargs)
    except ModelExportError:
        raise
    except (Exception, SystemExit) as error:
        shown = reference.text if reference.is_call else f"{reference.text}()"
        advice = "" if reference.is_call else "; arguments can be given as package.module:factory(64, name='a')"
        raise ModelSourceError(f"{shown} failed with {type(error).__name__}: {error}{advice}") from error
