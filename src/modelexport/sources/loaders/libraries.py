"""The libraries that load models: import them, silence their logs, and translate their errors to errors of ours."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from modelexport.display import in_one_line, with_class
from modelexport.errors import ModelExportError, ModelSourceError, causes_of

_LOGGING = ("transformers.utils.logging", "huggingface_hub.utils.logging", "diffusers.utils.logging")
_NO_CONVERSION = "DISABLE_SAFETENSORS_CONVERSION"


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence logs and progress bars of the imported libraries, except download bars on a terminal.

    Also prevents requests to the hub that the user did not ask for: huggingface_hub fetches a list of tools for its
    telemetry, and transformers requests the conversion of pickled weights.
    """
    from huggingface_hub import constants, utils

    with contextlib.ExitStack() as stack:
        before = os.environ.get(_NO_CONVERSION)
        if before is None:
            stack.callback(os.environ.pop, _NO_CONVERSION)
        else:
            stack.callback(os.environ.__setitem__, _NO_CONVERSION, before)
        os.environ[_NO_CONVERSION] = "1"
        stack.callback(setattr, constants, "HF_HUB_DISABLE_TELEMETRY", constants.HF_HUB_DISABLE_TELEMETRY)
        constants.HF_HUB_DISABLE_TELEMETRY = True
        # transformers switches the bars of downloads with its own.
        hidden = utils.are_progress_bars_disabled()
        restore_downloads = utils.disable_progress_bars if hidden else utils.enable_progress_bars
        stack.callback(restore_downloads)
        for library in [sys.modules[name] for name in _LOGGING if name in sys.modules]:
            stack.callback(library.set_verbosity, library.get_verbosity())
            library.set_verbosity(library.CRITICAL)
            if hasattr(library, "disable_progress_bar") and library.is_progress_bar_enabled():
                stack.callback(library.enable_progress_bar)
                library.disable_progress_bar()
        restore_downloads()
        yield


def require(package: str, extra: str, reference: str) -> Any:
    """Import a package."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise ModelSourceError(
            f"{reference} needs the package {missing!r}, which is not installed: pip install 'modelexport[{extra}]'"
        ) from error
    except Exception as error:
        raise ModelSourceError(
            f"{reference} needs the package {package!r}, and importing it failed with {with_class(error)}"
        ) from error


def explain_load_error(
    reference: str,
    revision: str | None,
    error: BaseException,
    *,
    repository: str | None = None,
    weights: Iterable[Path] = (),
    advice: str = "",
) -> ModelExportError:
    """The error of ours for one that a library raised while loading a model.

    Args:
        reference: What the user wrote.
        repository: The id on the hub, if it differs from the reference.
        weights: The safetensors files that it may have read, to name a broken one.
        advice: What else the user can do or may have meant.
    """
    for cause in causes_of(error):
        if isinstance(cause, ModelExportError):
            return cause
        meaning = _broken_file(error, cause, weights) or _hub_answer(cause, repository or reference, revision, advice)
        if meaning is None and isinstance(cause, ImportError):
            *_, first = causes_of(cause)
            meaning = f"importing a package that it needs failed with {type(first).__name__}: {in_one_line(first)}"
            if isinstance(first, ImportError):
                meaning = f"it needs a package that is not installed: {in_one_line(first)}"
        if meaning is not None:
            return ModelSourceError(f"{reference}: {meaning}")
    return ModelSourceError(f"{reference}: loading it failed with {type(error).__name__}: {in_one_line(error)}")


def _broken_file(error: BaseException, cause: BaseException, weights: Iterable[Path]) -> str | None:
    try:
        from safetensors import SafetensorError, safe_open
    except ImportError:
        return None
    if isinstance(cause, json.JSONDecodeError | UnicodeDecodeError):
        return f"one of its JSON files cannot be read: {in_one_line(error)}"
    if not isinstance(cause, SafetensorError):
        return None
    broken = []
    for path in weights:
        try:
            with safe_open(path, framework="pt"):
                pass
        except (SafetensorError, OSError):
            broken.append(path.name)
    named = ", ".join(broken) or "a weights file"
    return f"{named} is not a complete safetensors file ({in_one_line(cause)}): download or save it again"


def _hub_answer(cause: BaseException, repository: str, revision: str | None, advice: str) -> str | None:
    from huggingface_hub import errors

    page = f"https://huggingface.co/{repository}"
    also = f"; {advice}" if advice else ""
    if isinstance(cause, errors.GatedRepoError):
        return f"it is gated: request access on {page}, then log in with `hf auth login` or set HF_TOKEN"
    if isinstance(cause, errors.RepositoryNotFoundError):
        return f"the HuggingFace hub has no such model, or it is private and needs a login (hf auth login){also}"
    if isinstance(cause, errors.RevisionNotFoundError):
        return f"it has no revision {revision!r}: see {page}/tree/main for its revisions"
    if isinstance(cause, errors.HfHubHTTPError):
        return f"the HuggingFace hub answered {cause.response.status_code}: {in_one_line(cause)}"
    if isinstance(cause, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
        return f"a file is not in the cache, and the HuggingFace hub cannot be reached: {in_one_line(cause)}"
    return None
