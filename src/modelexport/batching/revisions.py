"""The revision of a model: a hash of the files that it is made from, or the commit on the hub. Imports no torch."""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
from pathlib import Path

import msgspec

from modelexport.batching.file_hashes import FileHashes
from modelexport.batching.jobs import Job
from modelexport.display import in_one_line
from modelexport.errors import ModelSourceError
from modelexport.input_options import existing_path

_PREFIXES = ("builtin:", "timm:", "diffusers:")
_PYTHON = ".py"


class HubModel(msgspec.Struct, frozen=True):
    """A repository on the HuggingFace hub, at a branch, tag or commit."""

    repository: str
    revision: str | None


def revision_of(job: Job, hashes: FileHashes) -> dict[str, str]:
    """What the content of a model is known by, as part of the key of a job.

    Args:
        job: The job.
        hashes: The hashes of files that are known.

    Raises:
        ModelSourceError: The model, or a file that it depends on, is missing.
    """
    found = {**_model_revision(job, hashes), **_dependencies(job, hashes)}
    for name in ("inputs", "input_image", "input_audio"):
        value = getattr(job, name)
        for path in (value,) if isinstance(value, str) else value or ():
            if not Path(path).is_file():
                raise ModelSourceError(f"{job.name}: {name} names {path}, which is not a file")
            found[f"{name}:{path}"] = hashes.of(Path(path))
    return found


def _model_revision(job: Job, hashes: FileHashes) -> dict[str, str]:
    reference = job.model
    if reference == "builtin:bert-tiny":
        return {"builtin": reference}
    if reference.startswith("builtin:"):
        raise ModelSourceError(f"there is no built-in model {reference!r}: the only one is builtin:bert-tiny")
    if reference.startswith("timm:"):
        return _timm_revision(job)
    if reference.startswith("diffusers:"):
        return _diffusers_revision(job, hashes)
    path = existing_path(reference)
    if path is not None and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelSourceError(f"{reference} has no config.json, so it is not a HuggingFace model")
        return {"folder": hashes.of_all(_files_of_folder(path), path)}
    if path is not None:
        return {"file": hashes.of(path)}
    if ":" in reference:
        root, files = _source(reference)
        return {"factory": reference.partition(":")[2], "source": hashes.of_all(files, root)}
    if reference.startswith((".", "~", "/")) or reference.count("/") > 1 or not reference.strip():
        raise ModelSourceError(f"there is no file or folder {reference!r}")
    return {"hub": reference, "commit": hub_commit(HubModel(reference, job.revision), reference)}


def _timm_revision(job: Job) -> dict[str, str]:
    if job.random_weights:
        return {"timm": job.model}
    # The name in the hub is known to timm only, which takes seconds to import; names of weights do not move.
    return {"timm": job.model, "revision": job.revision or ""}


def _diffusers_revision(job: Job, hashes: FileHashes) -> dict[str, str]:
    target = job.model.removeprefix("diffusers:")
    place, hash_sign, component = target.rpartition("#")
    if not hash_sign or existing_path(target) is not None:
        place, component = target, ""
    folder = existing_path(place)
    if folder is None:
        commit = hub_commit(HubModel(place, job.revision), job.model)
        return {"diffusers": component, "hub": place, "commit": commit}
    if not (folder / component / "config.json").is_file():
        raise ModelSourceError(f"{job.model}: there is no {folder / component / 'config.json'}")
    return {"diffusers": component, "folder": hashes.of_all(_files_of_folder(folder / component), folder)}


def _files_of_folder(folder: Path) -> list[Path]:
    """The files of a model: those in its folder, without folders in it."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def _dependencies(job: Job, hashes: FileHashes) -> dict[str, str]:
    found: dict[str, str] = {}
    for pattern in job.depends:
        paths = list(Path().glob(pattern)) if not Path(pattern).is_absolute() else [Path(pattern)]
        files = sorted(path for path in paths if path.is_file())
        if not files:
            raise ModelSourceError(f"{job.name}: depends names {pattern!r}, which matches no file")
        found[f"depends:{pattern}"] = hashes.of_all(files, Path())
    return found


def source_root(reference: str) -> Path:
    """The folder that a factory is imported from, which is the place of its files; `/` for other models."""
    with contextlib.suppress(ModelSourceError):
        return _source(reference)[0]
    return Path("/")


def _source(reference: str) -> tuple[Path, list[Path]]:
    """The folder that a factory is imported from, and the files of its module."""
    module = reference.partition(":")[0]
    if module.endswith(_PYTHON):
        file = existing_path(module)
        if file is None:
            raise ModelSourceError(f"{reference}: there is no file {module}")
        return file.resolve().parent, [file.resolve()]
    top, *inner = module.split(".")
    if not top.isidentifier():
        raise ModelSourceError(f"{reference}: {module!r} is not the name of a Python module")
    # Without an import: that of a package can take long, and the jobs are to run in processes of their own.
    searched = importlib.machinery.PathFinder.find_spec(top, [str(Path.cwd()), *sys.path])
    # Editable installs have finders of their own.
    spec = searched or next(filter(None, (finder.find_spec(top, None) for finder in sys.meta_path)), None)
    places = () if spec is None else spec.submodule_search_locations or (Path(str(spec.origin)).with_name(top),)
    for place in (Path(place).resolve() for place in places):
        stem = place.joinpath(*inner)
        ends = importlib.machinery.all_suffixes()
        named = (*(stem.with_name(stem.name + end) for end in ends), *(stem / f"__init__{end}" for end in ends))
        files = [path for path in named if path.is_file()]
        if files or stem.is_dir():
            return place.parent, files
    missing = top if spec is None else module
    raise ModelSourceError(f"{reference}: there is no Python module {missing!r}; install it, or run from its folder")


def hub_commit(model: HubModel, reference: str) -> str:
    """The commit of a repository: on the hub, or in the cache where the hub cannot be reached.

    Raises:
        ModelSourceError: There is no such model, or neither the hub nor the cache can tell.
    """
    try:
        from huggingface_hub import HfApi, errors, is_offline_mode
        from huggingface_hub.utils import validate_repo_id
    except ImportError as error:
        raise ModelSourceError(
            f"{reference!r} is not a file, folder or package.module:factory; as a hub id it needs the package "
            "huggingface_hub: pip install 'modelexport[hf]'"
        ) from error
    try:
        validate_repo_id(model.repository)
    except errors.HFValidationError as error:
        raise ModelSourceError(f"{reference!r} is neither a file, a folder nor a model id") from error
    reason = "HF_HUB_OFFLINE is set"
    try:
        if not is_offline_mode():
            return str(HfApi().model_info(model.repository, revision=model.revision).sha)
    except errors.HfHubHTTPError as error:
        if error.response.status_code < 500:
            raise ModelSourceError(
                f"{reference}: the HuggingFace hub has no such model: {in_one_line(error)}"
            ) from error
        reason = f"the HuggingFace hub answered {error.response.status_code}"
    except (errors.HTTPError, OSError) as error:
        reason = f"the HuggingFace hub cannot be reached ({in_one_line(error)})"
    cached = _cached_commit(model)
    if cached is None:
        raise ModelSourceError(
            f"{reference} is not a file or folder, is not in the cache of the HuggingFace hub, and {reason}"
        )
    return cached


def _cached_commit(model: HubModel) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model.repository, "config.json", revision=model.revision)
    # .../snapshots/COMMIT/config.json
    return Path(found).parent.name if isinstance(found, str) else None
