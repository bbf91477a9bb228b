"""The journal of a commit: locks a folder, and rolls back the commits that were killed in it.

A commit keeps its files in a temporary folder with a lock, the new files, the old files and the journal, which records
the state of each file before and after it. Removing the journal is the commit. It is never rolled forward: an exception
must roll back in any case, and a killed run never reported success. Rolling back is idempotent, so a kill during it
needs no special case.

Processes take turns by a lock on the folder itself, which leaves no lock file behind. Where folders cannot be
locked (Windows, NFS) a killed run cannot be distinguished from a running one, so nothing is removed or rolled back.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final

import msgspec

from modelexport.errors import StorageError

try:
    from fcntl import LOCK_EX, LOCK_NB, LOCK_UN, flock
except ImportError:  # Windows
    _CAN_LOCK = False
else:
    _CAN_LOCK = True

_TEMPORARY: Final = re.compile(r"\.modelexport-.+-[0-9a-f]{16}", re.DOTALL)
# Inside a temporary folder. Staged files have a folder of their own, so that they may have any name.
LOCK, JOURNAL, NEW, OLD = "lock", "commit.json", "new", "old"
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


class Step(msgspec.Struct, frozen=True):
    """One file of a commit: its signature before and after; None for no file."""

    # A bare name: no file outside the folder is touched.
    name: Annotated[str, msgspec.Meta(pattern=r"^(?!\.{1,2}$)[^/\0]+$")]
    old: _Signature | None
    new: _Signature | None


_Journal = tuple[str, tuple[int, int], list[Step]]  # the target, the journal's `identity_of`, and the files


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
    with reporting(target), turn(target.parent) as locked:
        return locked and sweep(target)


@contextmanager
def reporting(target: Path) -> Iterator[None]:
    """Turns an OSError into a StorageError that names the file, the problem and the next step."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.errno, "Fix that, or choose another folder")
        raise StorageError(
            f"Cannot write {target}: {error}. The previous files are unchanged. {advice}, and export again."
        ) from error


@contextmanager
def turn(folder: Path) -> Iterator[bool]:
    """Waits for the lock of ``folder`` and holds it; yields whether folders can be locked here."""
    if not _CAN_LOCK:
        yield False
        return
    with lock_file(folder, os.O_RDONLY | os.O_DIRECTORY, patience_s=_PATIENCE_S) as locked:
        if locked is False:
            raise StorageError(
                f"Cannot write to {folder}: another process has kept it locked for {_PATIENCE_S:.0f} s. "
                "Let it finish or stop it, and export again."
            )
        yield locked is True


@contextmanager
def lock_file(path: Path, flags: int, *, patience_s: float = 0.0) -> Iterator[bool | None]:
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
        with lock_file(folder / LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK) as locked:
            return locked is True
    except OSError as error:
        return error.errno == errno.ENOENT  # killed before it created its lock, or while it removed the folder


def sweep(target: Path) -> bool:
    """Removes what killed runs left in the folder, whose lock is held; returns whether a commit was rolled back."""
    rolled_back = False
    for folder in filter(_is_abandoned, _temporaries(target.parent)):
        journal = folder / JOURNAL
        if is_regular(journal):
            try:
                with journal.open("rb") as file:
                    text = file.read(_JOURNAL_LIMIT)
                name, origin, steps = msgspec.json.decode(text, type=_Journal)
            except (msgspec.ValidationError, UnicodeDecodeError):
                continue  # written by another version or another program: neither rolled back nor removed
            except msgspec.DecodeError:
                name, origin, steps = target.name, None, []  # truncated, so no file was moved yet
            if origin not in (None, identity_of(folder)):
                continue  # copied or unpacked here: it would remove and replace files that no killed commit wrote
            if target.name not in (name, *(step.name for step in steps)):
                continue  # left to the next run that writes or reads one of those files
            roll_back(folder, steps)
            rolled_back = True
        shutil.rmtree(folder, ignore_errors=True)
    return rolled_back


def identity_of(folder: Path) -> tuple[int, int] | None:
    """What an archive cannot contain and a copy does not have: inode and change time of a temporary folder's lock."""
    try:
        info = (folder / LOCK).lstat()
    except OSError:
        return None
    return info.st_ino, info.st_ctime_ns


def roll_back(staging: Path, steps: Sequence[Step]) -> None:
    """Restores the files from before the commit whose journal is in ``staging``."""
    backups = staging / OLD
    try:
        for step in reversed(steps):
            final, backup = staging.parent / step.name, backups / step.name
            if signature_of(final) not in (None, step.old, step.new):
                continue  # written by someone else since: keep it
            # The temporary folder may come from an untrusted archive, with links to files elsewhere.
            if is_regular(backup) and not backups.is_symlink():
                backup.replace(final)
            elif step.old is None:
                final.unlink(missing_ok=True)
        sync(staging.parent)
        (staging / JOURNAL).unlink()
    except OSError as error:
        raise StorageError(
            f"Cannot restore the files of an interrupted export in {staging.parent}: {error}. They are in "
            f"{staging}, which must stay. {_ADVICE.get(error.errno, 'Fix that')}; the next export to "
            "the same file restores them."
        ) from error
    with suppress(OSError):
        sync(staging)


def sync(path: Path) -> None:
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


def signature_of(path: Path) -> _Signature | None:
    try:
        info = path.lstat()
    except FileNotFoundError:
        return None
    return (info.st_size, info.st_mtime_ns) if stat.S_ISREG(info.st_mode) else (-1, 0)


def is_regular(path: Path) -> bool:
    return (signature_of(path) or (-1, 0))[0] >= 0
