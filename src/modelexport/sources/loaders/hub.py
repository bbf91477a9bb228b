"""The files of a HuggingFace model: in a folder, in a snapshot of the cache, or in a repository on the hub."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from modelexport.display import in_one_line
from modelexport.errors import ModelSourceError
from modelexport.sources.loaders.libraries import explain_load_error

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_SAFETENSORS = ".safetensors"
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})
_SERVER_ERROR = 500
_SHOWN_NAMES = 3


@dataclasses.dataclass(frozen=True)
class Repository:
    """The files of one model.

    Attributes:
        reference: What the user wrote.
        location: The folder, or the id on the hub.
        files: The names of its files.
        revision: The commit, branch or tag, for an id on the hub.
        cached_only: Why only the cache was searched, where the location is a snapshot in the cache.
    """

    reference: str
    location: str
    files: frozenset[str]
    revision: str | None = None
    cached_only: str | None = None

    @property
    def on_hub(self) -> bool:
        return self.revision is not None

    def at_revision(self) -> dict[str, Any]:
        """The argument of transformers' loaders for the revision on the hub."""
        return {"revision": self.revision} if self.on_hub else {}

    def weights_file(self, names: tuple[str, ...] = SAFE_WEIGHTS) -> str:
        """The first of these files that exists. All weights are safetensors, which load without running code."""
        found = [name for name in names if name in self.files]
        # Each of them: diffusers prefers an index to a single file, transformers the reverse.
        for name in found:
            self._check_safetensors(name)
        if found:
            return found[0]
        if self.cached_only is not None:
            raise ModelSourceError(
                f"{self.reference}: the cache has no weights for it, and {self.cached_only}; --random-weights "
                "initializes them from the configuration"
            )
        pickles = sorted(name for name in self.files if Path(name).suffix in _PICKLE_SUFFIXES)
        if pickles:
            raise ModelSourceError(
                f"{self.reference} has pickled weights only ({', '.join(pickles[:3])}), and loading a pickle can "
                "run code: give a revision with safetensors weights, or save the model again with save_pretrained"
            )
        raise ModelSourceError(
            f"{self.reference} has no weights: there is no {' and no '.join(names)}; --random-weights initializes "
            "them from the configuration"
        )

    def _check_safetensors(self, name: str) -> None:
        """Check that a weights file is safetensors, or an index whose shards are safetensors files of this model."""
        if name.endswith(_SAFETENSORS):
            return
        if not name.endswith(f"{_SAFETENSORS}.index.json"):
            raise ModelSourceError(
                f"{self.reference}: {name} is not a {_SAFETENSORS} file, and loading other formats can run code: save "
                "the model again with save_pretrained"
            )
        try:
            shards = set(json.loads(fetch(self, name).read_bytes())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelSourceError(
                f"{self.reference}: {name} is not an index of weights: {in_one_line(error)}"
            ) from error
        folder = name.rpartition("/")[0]
        missing = sorted(str(shard) for shard in shards if f"{folder}/{shard}".lstrip("/") not in self.files)
        if missing:
            raise ModelSourceError(
                f"{self.reference}: {name} names weights that do not exist: {', '.join(missing[:_SHOWN_NAMES])}"
            )
        # The libraries load a shard with another extension as a pickle.
        others = sorted(str(shard) for shard in shards if not str(shard).endswith(_SAFETENSORS))
        if others:
            raise ModelSourceError(
                f"{self.reference}: {name} names weights that are not {_SAFETENSORS} files, and loading other formats "
                f"can run code: {', '.join(others[:_SHOWN_NAMES])}; save the model again with save_pretrained"
            )


def folder_repository(reference: str, folder: Path, cached_only: str | None = None) -> Repository:
    """The files of a model in a folder."""
    try:
        files = frozenset(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise ModelSourceError(f"{folder} cannot be read: {error.strerror or error}") from error
    return Repository(reference, str(folder), files, cached_only=cached_only)


def find_on_hub(
    reference: str, repository: str, revision: str | None, *, advice: str, marker: str = "config.json"
) -> Repository:
    """The files of a model by its id: on the hub, or in the cache where the hub cannot be reached.

    Args:
        reference: What the user wrote.
        revision: The branch, tag or commit; by default the newest.
        advice: What else the user can do or may have meant.
        marker: A file that the cache has if it has the model.
    """
    from huggingface_hub import HfApi, constants, errors, is_offline_mode, try_to_load_from_cache
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except errors.HFValidationError as error:
        raise ModelSourceError(f"{reference!r} is not a model id; {advice}") from error
    found, reason = None, "HF_HUB_OFFLINE is set"
    unreachable: Exception | None = None
    try:
        if not is_offline_mode():
            found = HfApi().model_info(repository, revision=revision)
    except errors.HfHubHTTPError as error:
        if error.response.status_code < _SERVER_ERROR:
            raise explain_load_error(reference, revision, error, repository=repository, advice=advice) from error
        reason, unreachable = f"the HuggingFace hub answered {error.response.status_code}", error
    # HTTPError is the base class of the errors of whichever HTTP library huggingface_hub uses.
    except (errors.HTTPError, OSError) as error:
        reason = f"the HuggingFace hub at {constants.ENDPOINT} cannot be reached ({in_one_line(error)})"
        unreachable = error
    if found is None:
        cached = try_to_load_from_cache(repository, marker, revision=revision)
        if not isinstance(cached, str):
            named = reference if revision is None else f"{reference} at revision {revision}"
            raise ModelSourceError(
                f"{named} is not in the cache {constants.HF_HUB_CACHE}, and {reason}; {advice}"
            ) from unreachable
        # For a folder, transformers does not contact the hub.
        return folder_repository(reference, Path(cached).parent, cached_only=reason)
    files = frozenset(sibling.rfilename for sibling in found.siblings or ())
    if marker in files:
        # Fetched by branch or tag, so that the cache records its commit; other files are fetched by the commit.
        fetch(Repository(reference, repository, files, revision or constants.DEFAULT_REVISION), marker)
    return Repository(reference, repository, files, found.sha)


def fetch(repository: Repository, file: str) -> Path:
    """The path of one file of a model, downloaded if it is on the hub and not in the cache."""
    if not repository.on_hub:
        return Path(repository.location, file)
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository.location, file, revision=repository.revision))
    except Exception as error:
        raise explain_load_error(
            repository.reference, repository.revision, error, repository=repository.location
        ) from error
