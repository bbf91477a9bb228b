"""A folder, or a place on any storage that fsspec has a driver for. What is written there is written whole."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from modelexport.display import in_one_line
from modelexport.errors import InputError, StorageError
from modelexport.job_results.redaction import redacted, secret_values

_LOCAL = ("file", "local")
_TEMPORARY = ".modelexport-"
# A younger one may be that of a writer on another machine.
_LEFTOVER_SECONDS = 24 * 3600.0


class Location:
    """A folder or URL, and the files below it by their path within it, with ``/`` between the parts.

    A file is either there in full or not there: in a folder it is written under another name and renamed, and object
    stores make an upload visible when it is complete.

    Args:
        url: A path, or an URL such as ``s3://bucket/prefix``.
        storage_options: Arguments of the fsspec driver.

    Raises:
        InputError: There is no driver for it, or it cannot be used.
    """

    def __init__(self, url: str | Path, storage_options: Mapping[str, Any] | None = None) -> None:
        import fsspec

        if not isinstance(url, str | Path):
            raise InputError(f"a folder or URL is text or a path, not {type(url).__name__}")
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise InputError(
                f"storage_options are a dict of the driver's arguments, not {type(storage_options).__name__}"
            )
        self._secrets = secret_values(storage_options)
        # An URL with a password in it is a secret as well.
        self.url = redacted(str(url), self._secrets)
        self.storage_options = dict(storage_options or {})
        self._given = str(url)
        if not self._given.strip():
            raise InputError("the folder or URL is empty: it would be the current folder, which is written as .")
        protocol = self._given.partition("://")[0] if "://" in self._given else "file"
        try:
            self._files, root = fsspec.core.url_to_fs(self._given, **self.storage_options)
        except ImportError as error:
            raise InputError(
                f"{self.url}: no driver for {protocol}:// is installed ({in_one_line(error)}); docs/commands/batch.md "
                "lists the drivers"
            ) from error
        except Exception as error:
            raise InputError(f"{self.url} cannot be used: {self._explain(error)}") from error
        self._root = str(root).rstrip("/")
        names = (self._files.protocol,) if isinstance(self._files.protocol, str) else self._files.protocol
        self.protocol = protocol
        self.folder = Path(self._root or "/") if any(name in _LOCAL for name in names) else None

    @property
    def is_shared(self) -> bool:
        """Whether other processes see it."""
        return self.protocol != "memory"

    def check_writable(self) -> None:
        """Write, read and remove a small file.

        Raises:
            InputError: That failed.
        """
        name = f"{_TEMPORARY}{secrets.token_hex(8)}.tmp"
        try:
            self.write(name, b"")
            self._files.invalidate_cache()
            self.read(name)
            self._files.rm_file(self._path(name))
        except StorageError as error:
            raise InputError(str(error)) from error
        except Exception as error:
            raise InputError(f"{self.url} cannot be written: {self._explain(error)}") from error

    def remove_leftovers(self) -> None:
        """Remove temporary files of writers that were killed, a day after they were written; folders only have some."""
        for path in () if self.folder is None else self.folder.rglob(f"{_TEMPORARY}*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _LEFTOVER_SECONDS:
                    path.unlink()

    def write(self, name: str, content: bytes, *, replace: bool = True) -> bool:
        """Write a file.

        Args:
            name: Its path within this location.
            content: Its content.
            replace: Whether a file of that name may be replaced.

        Returns:
            Whether it was written: False where there is one, and `replace` is False.

        Raises:
            StorageError: It could not be written.
        """
        with self._reporting("write", name):
            if self.folder is not None:
                return _write_local(self.folder / name, content, replace=replace)
            path = self._path(name)
            if replace:
                self._files.pipe_file(path, content)
                return True
            try:
                self._files.pipe_file(path, content, mode="create")
            except FileExistsError:
                return False
            return True

    def upload(self, source: Path, name: str) -> None:
        """Write a file from one on this machine.

        Raises:
            StorageError: It could not be written.
        """
        with self._reporting("write", name):
            if self.folder is None:
                self._files.put_file(str(source), self._path(name))
                return
            target = self.folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}.tmp")
            try:
                shutil.copyfile(source, temporary)
                _sync(temporary)
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)

    def download(self, name: str, target: Path) -> None:
        """Copy a file to this machine.

        Raises:
            StorageError: It could not be read.
        """
        with self._reporting("read", name):
            target.parent.mkdir(parents=True, exist_ok=True)
            self._files.get_file(self._path(name), str(target))

    def read(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            StorageError: It could not be read, or is not there.
        """
        with self._reporting("read", name):
            content: bytes = self._files.cat_file(self._path(name))
            return content

    def names(self, folder: str = "") -> list[str]:
        """The files in a folder of this location, without those of folders in it; no files where there is no folder.

        Raises:
            StorageError: The folder could not be listed.
        """
        return sorted(PurePosixPath(path).name for path, kind, _ in self._listed(folder) if kind == "file")

    def sizes(self, folder: str = "") -> dict[str, int]:
        """The size of every file below a folder, by its path within that folder.

        Raises:
            StorageError: The folder could not be listed.
        """
        with self._reporting("list", folder):
            self._files.invalidate_cache()
            try:
                found = self._files.find(self._path(folder), detail=True)
            except FileNotFoundError:
                return {}
            start = len(self._path(folder)) + 1
            return {
                str(path)[start:]: int(about.get("size") or 0)
                for path, about in found.items()
                if _TEMPORARY not in str(path)
            }

    def age(self, name: str) -> float:
        """The seconds since a file was written; 0 where the storage does not tell.

        Raises:
            StorageError: It is not there.
        """
        with self._reporting("read", name):
            try:
                return max(0.0, time.time() - float(self._files.modified(self._path(name)).timestamp()))
            except NotImplementedError:
                return 0.0

    def remove(self, name: str) -> None:
        """Remove a file or folder; nothing happens if it is not there.

        Raises:
            StorageError: It could not be removed.
        """
        with self._reporting("remove", name), contextlib.suppress(FileNotFoundError):
            self._files.rm(self._path(name), recursive=True)

    def joined(self, name: str) -> str:
        """The path or URL of a file, for people."""
        return str(self.folder / name) if self.folder is not None else f"{self.url.rstrip('/')}/{name}"

    def _listed(self, folder: str) -> list[tuple[str, str, int]]:
        with self._reporting("list", folder):
            self._files.invalidate_cache()
            try:
                found = self._files.ls(self._path(folder), detail=True)
            except FileNotFoundError:
                return []
            return [
                (str(about["name"]), str(about["type"]), int(about.get("size") or 0))
                for about in found
                if _TEMPORARY not in str(about["name"])
            ]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    @contextlib.contextmanager
    def _reporting(self, what: str, name: str) -> Any:
        """Turn errors of the driver into ours, without secrets."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"Cannot {what} {self.joined(name)}: {self._explain(error)}") from error

    def _explain(self, error: BaseException) -> str:
        text = getattr(error, "strerror", None) or f"{type(error).__name__}: {in_one_line(error)}"
        return redacted(str(text), self._secrets)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Location, (self._given, self.storage_options))


def _write_local(target: Path, content: bytes, *, replace: bool) -> bool:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f"{_TEMPORARY}{secrets.token_hex(8)}.tmp")
    try:
        temporary.write_bytes(content)
        _sync(temporary)
        if replace:
            temporary.replace(target)
            return True
        try:
            # Unlike a rename, a link fails if the name is taken.
            os.link(temporary, target)
        except FileExistsError:
            return False
        return True
    finally:
        temporary.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def user_cache() -> Path:
    """The folder for what this user's commands keep between runs."""
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base or Path.home() / ".cache") / "modelexport"
