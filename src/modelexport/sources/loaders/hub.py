"""Where the files of a HuggingFace model are: a folder, a snapshot in the cache, or a repository on the hub."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from modelexport.errors import ModelSourceError
from modelexport.sources.loaders.load_errors import explain_load_error, in_one_line

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})
_TRY_AGAIN = 500
_SHOWN_NAMES = 3


@dataclasses.dataclass(frozen=True)
class Repository:
    """The files of one model, as transformers is told about them.

    Attributes:
        reference: What the user wrote.
        location: The folder, or the id on the hub.
        files: The names of its files.
        revision: The commit, branch or tag, for an id on the hub.
        cached_only: Why only the cache was asked, where the location is a snapshot in it.
    """

    reference: str
    location: str
    files: frozenset[str]
    revision: str | None = None
    cached_only: str | None = None

    @property
    def on_hub(self) -> bool:
        return self.revision is not None

    def weights_file(self, names: tuple[str, ...] = SAFE_WEIGHTS) -> str:
        """The first of these files that is there: weights that can be loaded without running anything.

        Raises:
            ModelSourceError: None of them is there.
        """
        for name in names:
            if name in self.files:
                self._check_index(name)
                return name
        if self.cached_only is not None:
            raise ModelSourceError(
                f"{self.reference}: the cache has no weights for it, and {self.cached_only}; --random-weights makes "
                "them up from the configuration"
            )
        pickles = sorted(name for name in self.files if Path(name).suffix in _PICKLE_SUFFIXES)
        if pickles:
            raise ModelSourceError(
                f"{self.reference} has its weights as pickle only ({', '.join(pickles[:3])}), and loading one can run "
                "any code: give a revision with safetensors weights, or save the model again with save_pretrained"
            )
        raise ModelSourceError(
            f"{self.reference} has no weights: there is no {' and no '.join(names)}; --random-weights makes them up "
            "from the configuration"
        )

    def _check_index(self, name: str) -> None:
        """Weights in pieces: each piece is a file of the model, and lies in no other place."""
        if not name.endswith(".index.json"):
            return
        try:
            pieces = set(json.loads(fetch(self, name).read_bytes())["weight_map"].values())
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ModelSourceError(f"{self.reference}: {name} is no index of weights: {in_one_line(error)}") from error
        folder = name.rpartition("/")[0]
        missing = sorted(str(piece) for piece in pieces if f"{folder}/{piece}".lstrip("/") not in self.files)
        if missing:
            raise ModelSourceError(
                f"{self.reference}: {name} names weights that are not there: {', '.join(missing[:_SHOWN_NAMES])}"
            )


def folder_repository(reference: str, folder: Path, cached_only: str | None = None) -> Repository:
    """A folder with the files of a model.

    Raises:
        ModelSourceError: It cannot be read.
    """
    try:
        files = frozenset(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise ModelSourceError(f"{folder} cannot be read: {error.strerror or error}") from error
    return Repository(reference, str(folder), files, cached_only=cached_only)


def find_on_hub(
    reference: str, repository: str, revision: str | None, *, advice: str, marker: str = "config.json"
) -> Repository:
    """A model by its id: as it is on the hub now, or from the cache where the hub cannot be reached.

    Args:
        reference: What the user wrote.
        repository: The id.
        revision: The branch, tag or commit; by default the newest.
        advice: What else the user may do or mean.
        marker: A file that the cache has where it has the model.

    Raises:
        ModelSourceError: There is no such model, or none that can be reached.
    """
    from huggingface_hub import HfApi, constants, errors, is_offline_mode
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repository)
    except errors.HFValidationError as error:
        raise ModelSourceError(f"{reference!r} names no model; {advice}") from error
    if is_offline_mode():
        reason = "HF_HUB_OFFLINE is set, so that the hub is not asked"
        return _from_cache(reference, repository, revision, marker, reason, advice)
    try:
        found = HfApi().model_info(repository, revision=revision)
    except errors.HfHubHTTPError as error:
        if error.response.status_code >= _TRY_AGAIN:
            reason = f"the HuggingFace hub answered {error.response.status_code}"
            return _from_cache(reference, repository, revision, marker, reason, advice)
        raise explain_load_error(reference, revision, error, repository=repository, advice=advice) from error
    # The first is the base of all that its HTTP library raises, whichever that is.
    except (errors.HTTPError, OSError) as error:
        reason = f"the HuggingFace hub at {constants.ENDPOINT} cannot be reached ({in_one_line(error)})"
        return _from_cache(reference, repository, revision, marker, reason, advice)
    files = frozenset(sibling.rfilename for sibling in found.siblings or ())
    if marker in files:
        # By its branch or tag, so that the cache knows next time which commit that was; the rest is had by the commit.
        fetch(Repository(reference, repository, files, revision or constants.DEFAULT_REVISION), marker)
    return Repository(reference, repository, files, found.sha)


def _from_cache(
    reference: str, repository: str, revision: str | None, marker: str, reason: str, advice: str
) -> Repository:
    from huggingface_hub import constants, try_to_load_from_cache

    found = try_to_load_from_cache(repository, marker, revision=revision)
    if not isinstance(found, str):
        named = reference if revision is None else f"{reference} at revision {revision}"
        raise ModelSourceError(f"{named} is not in the cache {constants.HF_HUB_CACHE}, and {reason}; {advice}")
    # Below a folder, transformers asks the hub for nothing.
    return folder_repository(reference, Path(found).parent, cached_only=reason)


def fetch(repository: Repository, file: str) -> Path:
    """One file of a model, downloaded where it is on the hub and not in the cache.

    Raises:
        ModelSourceError: It cannot be had.
    """
    if not repository.on_hub:
        return Path(repository.location, file)
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(repository.location, file, revision=repository.revision))
    except Exception as error:
        raise explain_load_error(
            repository.reference, repository.revision, error, repository=repository.location
        ) from error
