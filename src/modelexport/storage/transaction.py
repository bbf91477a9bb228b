"""Writes the files of one export as a transaction: readers see all old files or all new ones, also after a crash.

The set (``.onnx`` file, data file with its weights, sidecar, further files) is staged in a hidden temporary folder
beside the target, on the same file system, and fsynced. In a commit, each file about to be replaced gets a hard link
there, and a journal records the old and new state of each file. Then the files are moved: data file, others, sidecar,
``.onnx``; obsolete files are removed. The name of the data file contains a hash of its content, so that a graph never
finds the weights of another export. Removing the journal is the commit.

A failed commit is rolled back by its own process or, after a kill, by the next `stage_files` or
`roll_back_killed_commit`: see `commit_journal`.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from modelexport.deadline import deadline_paused
from modelexport.errors import ContractError, InputError, StorageError
from modelexport.storage.commit_journal import (
    JOURNAL,
    LOCK,
    NEW,
    OLD,
    Step,
    identity_of,
    is_regular,
    lock_file,
    reporting,
    roll_back,
    roll_back_killed_commit,
    signature_of,
    sweep,
    sync,
    turn,
)

_DIGEST_LENGTH: Final = 12


def sidecar_path(target: Path) -> Path:
    """Returns where the sidecar of ``target`` is: ``model_hierarchy.json`` beside ``model.onnx``."""
    return target.with_name(f"{target.stem}_hierarchy.json")


def data_file_name(target: Path, digest: str) -> str:
    """Names the data file of ``target`` after a hexadecimal hash of it: ``model-0123456789ab.onnx.data``."""
    if not re.fullmatch(rf"[0-9a-f]{{{_DIGEST_LENGTH},}}", digest):
        raise ContractError(f"{digest!r} is not {_DIGEST_LENGTH} or more lowercase hexadecimal digits")
    return f"{target.stem}-{digest[:_DIGEST_LENGTH]}{target.suffix}.data"


def data_files(target: Path) -> list[Path]:
    """The existing data files of ``target``, of this and earlier exports."""
    # torch names the data file of x.onnx x.onnx.data: with such an x.onnx beside it, it is not ours
    pattern = _data_pattern(target)
    found = (file for file in target.parent.iterdir() if pattern.fullmatch(file.name))
    return sorted(file for file in found if not file.with_suffix("").exists() and is_regular(file))


def check_target(path: str | Path, *, force: bool, sidecar: bool = True, others: Sequence[Path] = ()) -> Path:
    """Checks, before anything is loaded or traced, that an export to ``path`` can be written.

    Args:
        path: The ``.onnx`` file to write. A commit that was killed there is rolled back first.
        force: Whether files that exist may be replaced.
        sidecar: Whether a sidecar will be written too.
        others: Further files that will be written, in the same folder.

    Returns:
        The target: its real, absolute folder and its name as given.

    Raises:
        InputError: The path cannot be used; names the problem and the next step.
    """
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"a file to write is given by its path, not by {type(path).__name__}")
    path = Path(path)
    problem = _problem_with_name(path)
    if problem is not None:
        raise InputError(f"Cannot write {str(path)!r}: {problem}")
    try:
        target = path.parent.resolve(strict=True) / path.name
        roll_back_killed_commit(target)
        _try_to_write(target)
        for file in (target, *([sidecar_path(target)] if sidecar else []), *others):
            _check_free(file, force=force)
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, in Python below 3.13
        raise InputError(f"Cannot write {path}: {error}. Create that folder or choose another.") from error
    except StorageError as error:
        raise InputError(str(error)) from error
    return target


class Staging:
    """A temporary folder beside a target, whose files replace the target's all at once. Created by `stage_files`."""

    def __init__(self, target: Path, folder: Path, *, force: bool) -> None:
        self._target, self._folder, self._force = target, folder, force

    def path(self, name: str) -> Path:
        """Returns where to write the staged file ``name``, a bare file name."""
        if name in {"", ".", ".."} or "\0" in name or Path(name).name != name:
            raise ContractError(f"{name!r} is not a bare file name")
        return self._folder / NEW / name

    def commit(
        self, model: str, data: str | None, others: Mapping[str, Path], *, obsolete: Sequence[Path] = ()
    ) -> tuple[Path, ...]:
        """Moves the staged files into place, all or none, and removes data files of earlier exports.

        Args:
            model: Name of the staged ``.onnx`` file; it becomes the target.
            data: Name of the staged data file, from `data_file_name`, which it keeps, or None.
            others: For each further staged file its final path, in the target's folder.
            obsolete: Files in the target's folder that belong to the old model, such as its sidecar when the new
                export has none. They may be missing.

        Returns:
            The files written: the target first.

        Raises:
            StorageError: A file could not be written; the previous files are unchanged.
            InputError: A file that may not be replaced was created meanwhile.
        """
        target, last = self._target, sidecar_path(self._target).name
        if data is not None and not _data_pattern(target).fullmatch(data):
            raise ContractError(f"{data!r} is not named by data_file_name for {target}")
        moves = [] if data is None else [(data, target.with_name(data))]
        # A new sidecar and an old model do not belong together, so these two are moved last.
        moves += sorted(((n, file.absolute()) for n, file in others.items()), key=lambda m: m[1].name == last)
        moves.append((model, target))
        finals = [final for _, final in moves] + [file.absolute() for file in obsolete]
        if len({*finals}) < len(finals) or any(file.parent != target.parent for file in finals):
            raise ContractError(f"Not a set of different files in {target.parent}: {moves}, {obsolete}")
        with deadline_paused(), reporting(target):
            for name, _ in moves:  # the contents alone: the staged names need not survive a crash
                sync(self.path(name))
            with turn(target.parent) as locked:
                if locked:  # roll back a run that was killed meanwhile now, not later over our files
                    sweep(target)
                self._replace(moves, [file.name for file in obsolete])
        return tuple(final for _, final in reversed(moves))

    def _replace(self, moves: Sequence[tuple[str, Path]], obsolete: Sequence[str]) -> None:
        """Links the old files, writes the journal and moves the new files, with the folder's lock held."""
        folder, backups, journal = self._target.parent, self._folder / OLD, self._folder / JOURNAL
        pattern = _data_pattern(self._target)
        for _, final in moves:
            _check_free(final, force=self._force or pattern.fullmatch(final.name) is not None)
        steps = [Step(final.name, signature_of(final), signature_of(self.path(name))) for name, final in moves]
        leaving = {*data_files(self._target), *(folder / name for name in obsolete)}.difference(f for _, f in moves)
        steps += [Step(f.name, signature_of(f), None) for f in sorted(leaving) if is_regular(f)]
        try:
            if any(step.old is not None for step in steps):
                backups.mkdir()
                for step in steps[: len(moves)]:
                    if step.old is not None:
                        _back_up(folder / step.name, backups / step.name)
                sync(backups)
            journal.write_bytes(msgspec.json.encode((self._target.name, identity_of(self._folder), steps)))
            for path in (journal, self._folder, folder):
                sync(path)
            for name, final in moves:
                self.path(name).replace(final)
            for step in steps[len(moves) :]:
                (folder / step.name).replace(backups / step.name)
            sync(folder)
            journal.unlink()
        except BaseException:
            if is_regular(journal):
                roll_back(self._folder, steps)
            raise
        with suppress(OSError):  # already committed
            sync(self._folder)


@contextmanager
def stage_files(target: Path, *, force: bool = True) -> Iterator[Staging]:
    """Opens a temporary folder beside ``target``, and removes it at the end whatever happens.

    Removes first what killed exports left behind. An ``OSError`` raised inside the context counts as a failed write.

    Args:
        target: The ``.onnx`` file to write, as `check_target` returned it.
        force: Whether the commit may replace files that exist by then.

    Raises:
        StorageError: A file could not be written; the previous files are unchanged.
    """
    target = target.absolute()
    folder = _new_temporary(target)
    with reporting(target), ExitStack() as lock:
        try:
            with turn(target.parent) as locked:
                if locked:
                    sweep(target)
                # Created with the folder locked, so that no sweep sees it before it has a lock of its own.
                folder.mkdir(mode=0o700)
                (folder / NEW).mkdir()
                lock.enter_context(lock_file(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            yield Staging(target, folder, force=force)
        finally:
            lock.close()
            # A journal that is still there could not be rolled back: keep its files for the next attempt.
            if not is_regular(folder / JOURNAL):
                shutil.rmtree(folder, ignore_errors=True)


def _try_to_write(target: Path) -> None:
    """Raises StorageError where no temporary folder can be made for ``target``.

    Creating one is the test: permission bits mean nothing to root or on a read-only file system. Its name is the
    longest of all names derived from the target's, so this also finds a name that is too long.
    """
    folder = _new_temporary(target)
    with reporting(target):
        folder.mkdir(mode=0o700)
        with suppress(FileNotFoundError):  # it has no lock, so another process may have removed it
            folder.rmdir()


def _new_temporary(target: Path) -> Path:
    return target.parent / f".modelexport-{target.stem}-{secrets.token_hex(8)}"


def _problem_with_name(path: Path) -> str | None:
    if "\0" in str(path):
        return "it contains a NUL character. Choose another name."
    if path.name.lower() in {"", "..", ".onnx"}:
        return "it has no file name. Give one that ends in .onnx."
    if path.suffix.lower() != ".onnx":
        return f"the name must end in .onnx, as in {path.name}.onnx."
    if any("\ud800" <= character <= "\udfff" for character in path.name):
        return "the name is not valid Unicode, so no graph can name its data file. Choose another name."
    return None


def _check_free(path: Path, *, force: bool) -> None:
    """Raises InputError when ``path`` exists and must not be replaced."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        problem = f"it is a symbolic link, and links are not written through. Give {path.resolve()} itself"
    elif stat.S_ISDIR(mode):
        problem = "it is a folder. Choose another name, or one inside it"
    elif not stat.S_ISREG(mode):
        problem = "it is a pipe, socket or device. Choose another name"
    elif not force:
        problem = "it exists. Choose another name, or replace it: --force on the command line, overwrite=True in Python"
    else:
        return
    raise InputError(f"Cannot write {path}: {problem}.")


def _data_pattern(target: Path) -> re.Pattern[str]:
    digest = rf"[0-9a-f]{{{_DIGEST_LENGTH}}}"
    return re.compile(rf"{re.escape(target.stem)}-{digest}{re.escape(target.suffix)}\.data")


def _back_up(file: Path, backup: Path) -> None:
    try:
        backup.hardlink_to(file)
    except OSError:  # no hard links on this file system, or not to another user's file
        shutil.copy2(file, backup)
        sync(backup)
