"""The key of a job: a hash of everything that its result depends on. Two jobs with one key have the same bytes."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import platform
from collections.abc import Callable
from pathlib import Path

import msgspec

from modelexport._version import __version__
from modelexport.batching.file_hashes import FileHashes
from modelexport.batching.jobs import Job
from modelexport.batching.revisions import revision_of, source_root

# What loads, exports or checks a model. One that is not installed is part of the key as well.
LIBRARIES = (
    *("torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "numpy"),
    *("transformers", "timm", "diffusers", "torchvision", "safetensors"),
)
# A change of what a key is made from.
_VERSION = 2


def key_of(job: Job, hashes: FileHashes, versions: dict[str, str]) -> str:
    """The key of a job.

    Raises:
        ModelSourceError: The model, or a file that it depends on, is missing.
    """
    content = {
        "key": _VERSION,
        "model": revision_of(job, hashes),
        "settings": job.settings(),
        "versions": versions,
        # The check of a job that does not say which.
        "check": os.environ.get("MODELEXPORT_CHECK", ""),
        "package": _source_of_package(),
    }
    return hashlib.sha256(msgspec.json.encode(content, order="deterministic")).hexdigest()


def current_key(key: str, job: Job, hashes: FileHashes, imports_of: Callable[[str], dict[str, str] | None]) -> str:
    """The key of the result that is right for the sources and distributions of now.

    What a model imports is known after its export only, and stored with the result. If that changed since, the key is
    hashed with what it is now; and again, until there is no result under the key, or one that nothing changed for.

    Args:
        key: The key of the job.
        job: The job.
        hashes: The known hashes of files.
        imports_of: What the result under a key imported; None without a result.
    """
    root = source_root(job.model)
    while (then := imports_of(key)) is not None and (now := hashes.of_imports(then, root)) != then:
        key = hashlib.sha256(msgspec.json.encode([key, now], order="deterministic")).hexdigest()
    return key


@functools.cache
def installed_versions() -> dict[str, str]:
    """The versions of Python, of this package and of the libraries, without importing them."""
    found = {"python": ".".join(platform.python_version_tuple()[:2]), "modelexport": __version__}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = ""
    return found


@functools.cache
def _source_of_package() -> str:
    """A hash of this package: installed from a repository, its version does not change with every edit."""
    folder = Path(__file__).parents[1]
    return FileHashes(None).of_all(sorted(folder.rglob("*.py")), folder)
