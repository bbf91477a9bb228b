"""Where the files of a HuggingFace model are: a folder, a snapshot in the cache, or a repository on the hub."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from modelexport.errors import ModelSourceError

_SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".ckpt", ".pkl"})
_TRY_AGAIN = 500


@dataclasses.dataclass(frozen=True)
class Repository:
    """The files of one model, as transformers is told about them.

    Attributes:
        reference: What the user wrote.
        location: The folder, or the id on the hub.
        files: The names of its files.
        revision: The commit, for an id on the hub.
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

    def refuse_without_weights(self, names: tuple[str, ...] = _SAFE_WEIGHTS) -> None:
        """Says what is wrong where there are no weights that can be loaded without running anything.

        Raises:
            ModelSourceError: None of the files is there.
        """
        if any(name in self.files for name in names):
            return
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


def find_on_hub(reference: str, revision: str | None, other_forms: str) -> Repository:
    """A model by its id: as it is on the hub now, or from the cache where the hub cannot be reached.

    Raises:
        ModelSourceError: There is no such model, or none that can be reached.
    """
    from huggingface_hub import HfApi, constants, errors, is_offline_mode
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(reference)
    except errors.HFValidationError as error:
        raise ModelSourceError(f"{reference!r} names no model: MODEL is {other_forms}") from error
    if is_offline_mode():
        return _from_cache(reference, revision, "HF_HUB_OFFLINE is set, so that the hub is not asked", other_forms)
    try:
        found = HfApi().model_info(reference, revision=revision)
    except errors.HfHubHTTPError as error:
        if error.response.status_code >= _TRY_AGAIN:
            return _from_cache(reference, revision, f"the hub answered {error.response.status_code}", other_forms)
        raise explain_hub_error(reference, revision, error, other_forms) from error
    # The first is the base of all that its HTTP library raises, whichever that is.
    except (errors.HTTPError, OSError) as error:
        reason = f"the HuggingFace hub at {constants.ENDPOINT} cannot be reached ({_in_one_line(error)})"
        return _from_cache(reference, revision, reason, other_forms)
    files = frozenset(sibling.rfilename for sibling in found.siblings or ())
    return Repository(reference, reference, files, found.sha)


def _from_cache(reference: str, revision: str | None, reason: str, other_forms: str) -> Repository:
    from huggingface_hub import constants, try_to_load_from_cache

    found = try_to_load_from_cache(reference, "config.json", revision=revision)
    if not isinstance(found, str):
        named = reference if revision is None else f"{reference} at revision {revision}"
        raise ModelSourceError(
            f"{named} is not in the cache {constants.HF_HUB_CACHE}, and {reason}; there is no such file or folder "
            f"either: MODEL is {other_forms}"
        )
    # Below a folder, transformers asks the hub for nothing.
    return folder_repository(reference, Path(found).parent, cached_only=reason)


def explain_hub_error(
    reference: str, revision: str | None, error: BaseException, other_forms: str = ""
) -> ModelSourceError:
    """What a failure of the hub means, found in an error or in what it was raised from."""
    from huggingface_hub import errors

    page = f"https://huggingface.co/{reference}"
    for cause in causes(error):
        if isinstance(cause, errors.GatedRepoError):
            return ModelSourceError(
                f"{reference} is gated: ask for access on {page}, then log in with `hf auth login` or set HF_TOKEN"
            )
        if isinstance(cause, errors.RepositoryNotFoundError):
            also = f"; there is no such file or folder either: MODEL is {other_forms}" if other_forms else ""
            return ModelSourceError(
                f"there is no model {reference} on the HuggingFace hub, or it is private and needs a login "
                f"(hf auth login){also}"
            )
        if isinstance(cause, errors.RevisionNotFoundError):
            return ModelSourceError(f"{reference} has no revision {revision!r}: see {page}/tree/main for those it has")
        if isinstance(cause, errors.HfHubHTTPError):
            return ModelSourceError(
                f"{reference}: the HuggingFace hub answered {cause.response.status_code}: {_in_one_line(cause)}"
            )
        if isinstance(cause, errors.LocalEntryNotFoundError | errors.OfflineModeIsEnabled):
            return ModelSourceError(
                f"{reference}: a file is not in the cache, and the HuggingFace hub cannot be reached: "
                f"{_in_one_line(cause)}"
            )
    return ModelSourceError(f"{reference}: loading it failed with {type(error).__name__}: {_in_one_line(error)}")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from, what that was raised from, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _in_one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
