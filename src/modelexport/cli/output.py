"""The output of all commands: results on stdout or in a file, everything else on stderr."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import enum
import io
import json
import logging
import os
import shlex
import shutil
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from modelexport.cli.options import option
from modelexport.deadline import deadline_paused
from modelexport.display import counted, printable
from modelexport.errors import ExportError, InputError, StorageError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.status import Status

    from modelexport.attempt_report import AttemptReport
    from modelexport.exporting import ProgressEvent

ROOT = "(root)"
FINDINGS = 1
_PANEL = "Output"
_SUFFIXES = {
    "": "human",
    ".txt": "human",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".html": "html",
    ".sarif": "sarif",
}
_SECONDS_BETWEEN_LINES = 5.0
# Lines in files and pipes have no limit, but rich needs a number.
_UNLIMITED = 1_000_000
_ROWS_ON_A_TERMINAL = 20
_VERBOSE_LOGGERS = ("torch", "onnxscript", "onnx_ir", "transformers")


class Format(enum.StrEnum):
    """How a command prints its result."""

    HUMAN = "human"
    JSON = "json"


def format_option(text: str) -> Any:
    """The format of a report, which -o writes to a file: its extension can determine the format."""
    return option(_PANEL, f"{text} By default human, or by the file extension of -o.", "--format")


FormatOption = Annotated[Format, option(_PANEL, "For people, or JSON for programs.", "--format")]
ReportFormatOption = Annotated[Format | None, format_option("For people, or JSON for programs.")]
Form = TypeVar("Form", bound=enum.StrEnum)


@dataclasses.dataclass(frozen=True)
class Output:
    """The output of a command. `main.run` reads `debug`."""

    quiet: Annotated[
        bool, option(_PANEL, "No progress, notes or summary: only reports and errors.", "--quiet", "-q")
    ] = False
    verbose: Annotated[bool, option(_PANEL, "Also show what libraries log, print and warn of.", "--verbose", "-v")] = (
        False
    )
    debug: Annotated[bool, option(_PANEL, "Show the traceback of an error.", "--debug")] = False

    def summary(self, lines: Iterable[str]) -> None:
        """Print a summary of a command that writes files; the files are its result."""
        if not self.quiet:
            write_stdout("".join(f"{printable(line)}\n" for line in lines))

    def json(self, content: Any) -> None:
        """Print a result as JSON."""
        write_stdout(json_text(content))

    def note(self, text: str) -> None:
        """Print a note that is not part of the result."""
        if not self.quiet:
            message(text)

    @contextlib.contextmanager
    def working(self, text: str) -> Iterator[None]:
        """Show the current activity on a terminal."""
        with Activity(quiet=self.quiet) as activity:
            activity.show(text)
            yield

    @contextlib.contextmanager
    def running_model(self) -> Iterator[Activity]:
        """Load and run a model: its stdout goes to stderr, and libraries are quiet unless `verbose` is set."""
        if not self.verbose:
            silence_libraries()
        with deadline_paused(), contextlib.redirect_stdout(sys.stderr), Activity(quiet=self.quiet) as activity:
            try:
                yield activity
            except ExportError as error:
                self.printed(error.attempts)
                raise

    def printed(self, attempts: Iterable[AttemptReport]) -> None:
        """Show what libraries printed during the attempts of an export, if `verbose` is set."""
        for attempt in attempts if self.verbose else ():
            for line in attempt.output.splitlines():
                message(f"{attempt.name}: {line}")


@dataclasses.dataclass
class ReportFile:
    """The destination of a report: stdout, or the file of ``-o``."""

    output: Annotated[Path | None, option(_PANEL, "Write to this file instead.", "--output", "-o")] = None
    force: Annotated[bool, option(_PANEL, "Replace the file if it exists.", "--force")] = False
    _target: Path | None = dataclasses.field(default=None, init=False)

    def check(self, *taken: Path) -> None:
        """Check, before any work is done, that the file can be written.

        Raises:
            InputError: It cannot, or it is one of the files in `taken`.
        """
        from modelexport.storage import check_text_target

        if self.output is not None:
            make_folder(self.output.parent)
            self._target = check_text_target(self.output, force=self.force, taken=taken)

    def form(self, given: Form | None, forms: type[Form]) -> Form:
        """The format to write: the given one, else the one of the file extension.

        Raises:
            InputError: The extension is not that of a supported format.
        """
        if given is not None or self.output is None:
            return given or forms("human")
        known = {suffix: name for suffix, name in _SUFFIXES.items() if name in list(forms)}
        name = known.get(self.output.suffix.lower())
        if name is None:
            suffixes = ", ".join(suffix for suffix in known if suffix)
            raise InputError(f"{self.output}: unknown file extension. Use {suffixes}, or give --format.")
        return forms(name)

    def write(self, text: str, out: Output) -> None:
        """Write the report.

        Raises:
            StorageError: It could not be written.
        """
        from modelexport.storage import write_text

        if self._target is None:
            write_stdout(text)
            return
        write_text(self._target, text)
        out.note(f"wrote {self._target}")

    def rows(self, limit: int | None) -> int:
        """The number of rows to show, 0 for all: the given limit, else a few on a terminal and all elsewhere."""
        if limit is not None:
            return limit
        return 0 if self.width == _UNLIMITED else _ROWS_ON_A_TERMINAL

    @property
    def width(self) -> int:
        """The width of text: that of the terminal; unlimited for files and pipes."""
        return _UNLIMITED if self.output is not None else stdout_width()


class Activity:
    """Progress on stderr: a status line on a terminal, a line every few seconds elsewhere.

    Args:
        quiet: Show nothing.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._console = _stderr_console()
        self._status: Status | None = None
        self._started: float | None = None
        self._last = 0.0

    def __enter__(self) -> Activity:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def show(self, text: str) -> None:
        """Show the current activity, on a terminal only."""
        from rich.text import Text

        if self._quiet or not self._console.is_terminal:
            return
        shown = Text(printable(text))
        if self._status is None:
            self._status = self._console.status(shown)
            self._status.start()
        else:
            self._status.update(shown)

    def log(self, text: str) -> None:
        """Print a line that stays."""
        if not self._quiet:
            self._console.print(printable(text), markup=False)

    def step(self, event: ProgressEvent) -> None:
        """Show that a step of an export began or ended."""
        step = f"{event.number}/{event.total} {event.step:<9}"
        if event.finished:
            self.__exit__()
            self.log(f"  {step} {event.seconds:6.2f} s  {event.detail}".rstrip())
        else:
            self.show(step)

    def count(self, done: int, total: int, name: str) -> None:
        """Show how many of all calls were compared."""
        now = time.monotonic()
        # The time starts at the first call, after the model was loaded.
        if self._started is None:
            self._started = self._last = now
        if done == total:
            self.__exit__()
            self.log(f"  {counted(total, 'call')} compared in {now - self._started:.1f} s")
        elif self._console.is_terminal:
            self.show(f"{done}/{total} {name or ROOT}")
        elif now - self._last >= _SECONDS_BETWEEN_LINES:
            self._last = now
            self.log(f"  {done}/{total} {name or ROOT}")


def make_folder(folder: Path) -> None:
    """Create an output folder that is missing; it is removed again at exit if nothing was written into it."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    # The check of the file in it reports a folder that cannot be created.
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    for created in reversed(missing):
        atexit.register(_remove_if_empty, created.absolute())


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def silence_libraries() -> None:
    """Silence log messages and warnings of libraries; errors and notes of ours contain what users need."""
    for name in _VERBOSE_LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")


def message(text: str) -> None:
    """Print a line on stderr."""
    _stderr_console().print(printable(text), markup=False)


def write_stdout(text: str) -> None:
    """Print a result.

    Raises:
        StorageError: stdout cannot be written; a closed pipe is a BrokenPipeError, which ends the command silently.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard_stdout()
        raise StorageError(f"Cannot write to standard output: {error.strerror or error}") from error


def discard_stdout() -> None:
    """Send what is left in stdout's buffer nowhere: Python would try to write it again when it ends."""
    with contextlib.suppress(OSError, io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def json_text(content: Any) -> str:
    """JSON that any terminal and any file encoding can hold."""
    return json.dumps(content, indent=2, ensure_ascii=True) + "\n"


def rendered(content: RenderableType, width: int) -> str:
    """What rich makes of it: with colours for a terminal, plain elsewhere, and no line longer than `width`."""
    from rich.console import Console

    text = io.StringIO()
    terminal = width != _UNLIMITED and _is_terminal(sys.stdout)
    console = Console(file=text, width=width, highlight=False, force_terminal=terminal)
    console.print(content)
    return "".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines())


def stdout_width() -> int:
    """The width of the terminal that results go to; no limit where they go to a file or a pipe."""
    return shutil.get_terminal_size().columns if _is_terminal(sys.stdout) or os.environ.get("COLUMNS") else _UNLIMITED


def command_line(*words: str | Path) -> str:
    """A command as it can be pasted into a shell."""
    return shlex.join(["modelexport", *map(str, words)])


def _is_terminal(stream: Any) -> bool:
    return bool(getattr(stream, "isatty", lambda: False)())


def _stderr_console() -> Console:
    from rich.console import Console

    # No emoji: `:a:` in the name of a model is no emoji.
    return Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
