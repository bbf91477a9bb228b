"""Load a model from `package.module:factory`, `package.module:factory(arguments)`, or `file.py:factory`."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from modelexport.display import with_class
from modelexport.errors import ModelExportError, ModelSourceError
from modelexport.input_options import existing_path
from modelexport.sources.loaders.sourced_model import SourcedModel

_PYTHON = ".py"


@dataclasses.dataclass(frozen=True)
class _Reference:
    """A parsed reference. Only one without parentheses (`is_call` is False) may name a model instead of a factory.

    `module` is the name of a Python module, or the path of its file.
    """

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
    """
    parsed = _parse(reference)
    file = existing_path(parsed.module) if _is_file(parsed.module) else None
    if file is None and _is_file(parsed.module):
        raise ModelSourceError(f"{reference}: there is no file {parsed.module!r}; check its path")
    with _importable(Path.cwd() if file is None else file.resolve().parent):
        returned = _call(parsed, _import_attribute(parsed, file))
    model, inputs = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(model, torch.nn.Module):
        raise ModelSourceError(
            f"{reference} returned a {type(model).__name__}: a factory returns a torch.nn.Module, "
            "or a pair of one and its example inputs"
        )
    return SourcedModel(model, inputs)


def _parse(reference: str) -> _Reference:
    file, suffix, target = reference.partition(f"{_PYTHON}:")
    module = f"{file}{_PYTHON}"
    if not suffix:
        module, _, target = reference.partition(":")
    try:
        tree = ast.parse(target.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise _unreadable(reference) from error
    call = tree if isinstance(tree, ast.Call) else None
    attribute = _dotted(tree if call is None else call.func)
    if attribute is None or not (_is_file(module) or all(part.isidentifier() for part in module.split("."))):
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
        f"{reference!r} is not a reference to a model: write package.module:factory, file.py:factory, or "
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


def _is_file(module: str) -> bool:
    return module.endswith(_PYTHON)


@contextlib.contextmanager
def _importable(place: Path) -> Iterator[None]:
    """Make modules of a folder importable, as `python` does, also by the factory while it runs."""
    folder = str(place)
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        # The imported code may have removed it already.
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _import_attribute(reference: _Reference, file: Path | None) -> object:
    try:
        found: object = importlib.import_module(reference.module) if file is None else _import_file(file.resolve())
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
            f"{reference.text}: importing {reference.module} failed with {with_class(error)}"
        ) from error
    for part in reference.attribute.split("."):
        if not hasattr(found, part):
            raise ModelSourceError(
                f"{reference.text}: {reference.module} has no {reference.attribute!r}; name a factory it defines"
            )
        found = getattr(found, part)
    return found


def _import_file(path: Path) -> ModuleType:
    known = sys.modules.get(path.stem)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    # The file may have the name of a library.
    name = path.stem if known is None else f"{path.stem}_from_file"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Classes of a module find it here by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


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
        raise ModelSourceError(f"{shown} failed with {with_class(error)}{advice}") from error
