"""Import optional packages on demand; the error for a missing one has the command that installs it."""

from __future__ import annotations

import importlib
from typing import Any

from modelexport.errors import ModelSourceError


def require(package: str, extra: str, reference: str) -> Any:
    """Import a package.

    Raises:
        ModelSourceError: It is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        missing = error.name or package
        raise ModelSourceError(
            f"{reference} needs the package {missing!r}, which is not installed: pip install 'modelexport[{extra}]'"
        ) from error
    except Exception as error:
        raise ModelSourceError(
            f"{reference} needs the package {package!r}, and importing it failed with {type(error).__name__}: {error}"
        ) from error
