"""Writes the files of one export as a transaction: readers see all old files or all new ones, also after a crash.

The set (``.onnx`` file, data file with its weights, sidecar, further files) is staged in a hidden temporary folder
beside the target, on the same file system, and fsynced. In a commit, each file about to be replaced gets a hard link
there, and a journal records the old and new state of each file. Then the files are moved: data file, others, sidecar,
``.onnx``; obsolete files are removed. The name of the data file contains a hash of its content, so that a graph never
finds the weights of another export. Removing the journal is the commit.

A failed commit is rolled back by its own process or, after a kill, by the next `stage_files` or
`roll_back_killed_commit`. It is never rolled forward: an exception must roll back in any case, and a killed run never
reported success. Rolling back is idempotent, so a kill during it needs no special case.

Processes take turns by a lock on the folder itself, which leaves no lock file behind. Where folders cannot be
locked (Windows, NFS) a killed run cannot be distinguished from a running one, so nothing is removed or rolled back.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from modelexport.errors import ContractError, InputError, StorageError

try:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
except ImportError:  # Windows
    _CAN_LOCK = False
else:
    _CAN_LOCK = True

_TEMPORARY: Final = re.compile(r"\.modelexport-.+-[0-9a-f]{16}", re.DOTALL)
_DIGEST_LENGTH: Final = 12
# Inside a temporary folder. Staged files have a folder of their own, so that they may have any name.
_LOCK, _JOURNAL, _NEW, _OLD = "lock", "commit.json", "new", "old"
# Each file of a folder of submodels takes about 100 bytes.
_JOURNAL_LIMIT: Final = 1 << 26
# A turn takes milliseconds: the files are written and fsynced before it.
_PATIENCE_S: Final = 60.0
_ADVICE: Final[Mapping[int | None, str]] = {
    errno.ENOSPC: "Free some space there, or choose a folder on another disk",
    errno.EDQUOT: "Free some of your quota there, or choose a folder on another disk",
    errno.EACCES: "Get permission to write there, or choose another folder",
    errno.EPERM: "Get permission to write there, or choose another folder",
    errno.EROFS: "Choose a folder on a file system that is not read-only",
    errno.EIO: "Check the disk, or choose a folder on another one",
    errno.ENAMETOOLONG: "Choose a name that is at least 30 bytes shorter than what the folder allows",
    errno.ENOTDIR: "Give a path inside a folder",
}

_Signature = tuple[int, int]  # size and modification time: both survive a rename and a hard link


class _Step(msgspec.Struct, frozen=True):
    """One file of a commit: its signature before and after; None for no file."""

    # A bare name: no file outside the folder is touched.
    name: Annotated[str, msgspec.Meta(pattern=r"^(?!\.{1,2}$)[^/\0]+$")]
    old: _Signature | None
    new: _Signature | None


_Journal = tuple[str, tuple[int, int], list[_Step]]  # the target, the journal's `_origin`, and the files


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
    return sorted(file for file in found if not file.with_suffix("").exists() and _is_regular(file))


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
        raise InputError(f"Cannot write {path}: {error}. Make that folder or choose another.") from error
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
        return self._folder / _NEW / name

    def commit(
        self, model: str, data: str | None, others: Mapping[str, Path], *, obsolete: Sequence[Path] = ()
    ) -> tuple[Path, ...]:
        """Moves the staged files into place, all or none, and removes data files of earlier exports.

        Args:
            model: Name of the staged ``.onnx`` file; it becomes the target.
            data: Name of the staged data file, from `data_file_name`, which it keeps; None if there is none.
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
        with _reporting(target):
            for name, _ in moves:  # the contents alone: the staged names need not survive a crash
                _sync(self.path(name))
            with _turn(target.parent) as locked:
                if locked:  # roll back a run that was killed meanwhile now, not later over our files
                    _sweep(target)
                self._replace(moves, [file.name for file in obsolete])
        return tuple(final for _, final in reversed(moves))

    def _replace(self, moves: Sequence[tuple[str, Path]], obsolete: Sequence[str]) -> None:
        """Links the old files, writes the journal and moves the new files, with the folder's lock held."""
        folder, backups, journal = self._target.parent, self._folder / _OLD, self._folder / _JOURNAL
        pattern = _data_pattern(self._target)
        for _, final in moves:
            _check_free(final, force=self._force or pattern.fullmatch(final.name) is not None)
        steps = [_Step(final.name, _signature(final), _signature(self.path(name))) for name, final in moves]
        leaving = {*data_files(self._target), *(folder / name for name in obsolete)}.difference(f for _, f in moves)
        steps += [_Step(f.name, _signature(f), None) for f in sorted(leaving) if _is_regular(f)]
        try:
            if any(step.old is not None for step in steps):
                backups.mkdir()
                for step in steps[: len(moves)]:
                    if step.old is not None:
                        _back_up(folder / step.name, backups / step.name)
                _sync(backups)
            journal.write_bytes(msgspec.json.encode((self._target.name, _origin(self._folder), steps)))
            for path in (journal, self._folder, folder):
                _sync(path)
            for name, final in moves:
                self.path(name).replace(final)
            for step in steps[len(moves) :]:
                (folder / step.name).replace(backups / step.name)
            _sync(folder)
            journal.unlink()
        except BaseException:
            if _is_regular(journal):
                _roll_back(self._folder, steps)
            raise
        with suppress(OSError):  # already committed
            _sync(self._folder)


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
    with _reporting(target), ExitStack() as lock:
        try:
            with _turn(target.parent) as locked:
                if locked:
                    _sweep(target)
                # Created with the folder locked, so that no sweep sees it before it has a lock of its own.
                folder.mkdir(mode=0o700)
                (folder / _NEW).mkdir()
                lock.enter_context(_locked(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL))
            yield Staging(target, folder, force=force)
        finally:
            lock.close()
            # A journal that is still there could not be rolled back: keep its files for the next attempt.
            if not _is_regular(folder / _JOURNAL):
                shutil.rmtree(folder, ignore_errors=True)


def roll_back_killed_commit(target: Path) -> bool:
    """Rolls back a commit to ``target`` that was killed; for readers, before they open the files.

    Returns:
        Whether there was one. If not, this costs one listing of the folder.

    Raises:
        StorageError: The old files could not be restored.
    """
    target = target.absolute()
    try:
        if not _CAN_LOCK or not _temporaries(target.parent):
            return False
    except OSError:
        return False  # opening the file reports a missing or unreadable folder better
    with _reporting(target), _turn(target.parent) as locked:
        return locked and _sweep(target)


def _try_to_write(target: Path) -> None:
    """Raises StorageError where no temporary folder can be made for ``target``.

    Creating one is the test: permission bits mean nothing to root or on a read-only file system. Its name is the
    longest of all names derived from the target's, so this also finds a name that is too long.
    """
    folder = _new_temporary(target)
    with _reporting(target):
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


@contextmanager
def _reporting(target: Path) -> Iterator[None]:
    """Turns an OSError into a StorageError that names the file, the problem and the next step."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno, "Fix that, or choose another folder")
        raise StorageError(
            f"Cannot write {target}: {error}. The previous files are unchanged. {advice}, and export again."
        ) from error


@contextmanager
def _turn(folder: Path) -> Iterator[bool]:
    """Waits for the lock of ``folder`` and holds it; yields whether folders can be locked here."""
    if not _CAN_LOCK:
        yield False
        return
    with _locked(folder, os.O_RDONLY | os.O_DIRECTORY, patience_s=_PATIENCE_S) as locked:
        if locked is False:
            raise StorageError(
                f"Cannot write to {folder}: another process has kept it locked for {_PATIENCE_S:.0f} s. "
                "Let it finish or stop it, and export again."
            )
        yield locked is True


@contextmanager
def _locked(path: Path, flags: int, *, patience_s: float = 0.0) -> Iterator[bool | None]:
    """Opens and locks a file; yields False if it stayed locked by others, None where files cannot be locked."""
    deadline = time.monotonic() + patience_s
    handle = os.open(path, flags, 0o600)
    locked = None
    try:
        while _CAN_LOCK and locked is not True:
            try:
                flock(handle, LOCK_EX | LOCK_NB)
                locked = True
            except BlockingIOError:
                locked = False
                if time.monotonic() >= deadline:
                    break
                time.sleep(0.005)
            except OSError:
                break
        yield locked
    finally:
        if locked:
            flock(handle, LOCK_UN)  # closing alone keeps it locked while a forked child has it open
        os.close(handle)


def _temporaries(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if _TEMPORARY.fullmatch(path.name))


def _is_abandoned(folder: Path) -> bool:
    """Whether a temporary folder belongs to this user and its process has ended."""
    try:
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            return False
        with _locked(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK) as locked:
            return locked is True
    except OSError as error:
        return error.errno == errno.ENOENT  # killed before it created its lock, or while it removed the folder


def _sweep(target: Path) -> bool:
    """Removes what killed runs left in the folder, whose lock is held; returns whether a commit was rolled back."""
    rolled_back = False
    for folder in filter(_is_abandoned, _temporaries(target.parent)):
        journal = folder / _JOURNAL
        if _is_regular(journal):
            try:
                with journal.open("rb") as file:
                    text = file.read(_JOURNAL_LIMIT)
                name, origin, steps = msgspec.json.decode(text, type=_Journal)
            except msgspec.ValidationError:
                continue  # written by another version: neither rolled back nor removed
            except msgspec.DecodeError:
                name, origin, steps = target.name, None, []  # truncated, so no file was moved yet
            if origin not in (None, _origin(folder)):
                continue  # copied or unpacked here: it would remove and replace files that no killed commit wrote
            if target.name not in (name, *(step.name for step in steps)):
                continue  # left to the next run that writes or reads one of those files
            _roll_back(folder, steps)
            rolled_back = True
        shutil.rmtree(folder, ignore_errors=True)
    return rolled_back


def _origin(folder: Path) -> tuple[int, int] | None:
    """What an archive cannot contain and a copy does not have: inode and change time of a temporary folder's lock."""
    try:
        info = (folder / _LOCK).lstat()
    except OSError:
        return None
    return info.st_ino, info.st_ctime_ns


def _roll_back(staging: Path, steps: Sequence[_Step]) -> None:
    """Restores the files from before the commit whose journal is in ``staging``."""
    backups = staging / _OLD
    try:
        for step in reversed(steps):
            final, backup = staging.parent / step.name, backups / step.name
            if _signature(final) not in (None, step.old, step.new):
                continue  # written by someone else since: keep it
            # The temporary folder may come from an untrusted archive, with links to files elsewhere.
            if _is_regular(backup) and not backups.is_symlink():
                backup.replace(final)
            elif step.old is None:
                final.unlink(missing_ok=True)
        _sync(staging.parent)
        (staging / _JOURNAL).unlink()
    except OSError as error:
        raise StorageError(
            f"Cannot restore the files of an interrupted export in {staging.parent}: {error}. They are in "
            f"{staging}, which must stay. {_ADVICE.get(error.errno, 'Fix that')}; the next export to "
            "the same file restores them."
        ) from error
    with suppress(OSError):
        _sync(staging)


def _back_up(file: Path, backup: Path) -> None:
    try:
        backup.hardlink_to(file)
    except OSError:  # no hard links on this file system, or not to another user's file
        shutil.copy2(file, backup)
        _sync(backup)


def _sync(path: Path) -> None:
    """Calls fsync on a file or folder."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if not is_folder or error.errno not in {errno.EINVAL, errno.ENOTSUP}:  # not every file system can
            raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        os.close(handle)


def _signature(path: Path) -> _Signature | None:
    try:
        info = path.lstat()
    except FileNotFoundError:
        return None
    return (info.st_size, info.st_mtime_ns) if stat.S_ISREG(info.st_mode) else (-1, 0)


def _is_regular(path: Path) -> bool:
    return (_signature(path) or (-1, 0))[0] >= 0
