"""A private API of a library: how it is looked up, used and replaced, and the error where a release changed it.

The modules `private*.py` and `transformers_private.py` define one `Part` for each API, and functions that use it. It is
looked up when it is used, so that only this use fails on a release without it. docs/private-parts.md lists all parts.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import threading
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeVar

from modelexport.display import with_class
from modelexport.errors import ContractError, ModelExportError, UnsupportedLibraryError

Result = TypeVar("Result")

# The releases on which every part was tested.
SEEN_ON = {"torch": ("2.9.1", "2.11.0", "2.13.0", "2.15.0"), "transformers": ("5.17.0", "5.22.2")}


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """A private API. Its methods raise `UnsupportedLibraryError` where the installed release lacks or changed it.

    Attributes:
        path: Its dotted path. The path of an item of a mapping ends in its key, as in ``torch.fx.Node.meta["custom"]``.
        reason: What it is needed for.
        runs_model: Whether it runs the model, so that its errors may be the model's.
    """

    path: str
    reason: str
    runs_model: bool = False

    def find(self) -> Any:
        """Look it up."""
        library, *names = self.path.split(".")
        try:
            found: Any = importlib.import_module(library)
            current = library
            for name in names:
                current = f"{current}.{name}"
                if isinstance(found, ModuleType) and not hasattr(found, name):
                    importlib.import_module(current)
                found = getattr(found, name)
        except (ImportError, AttributeError) as error:
            raise self.missing() from error
        return found

    @functools.cached_property
    def fixed(self) -> Any:
        """An API that nothing replaces while the process runs: looked up once."""
        return self.find()

    def of(self, instance: object) -> Any:
        """The attribute of an instance of the class in the path."""
        try:
            return getattr(instance, self.path.rpartition(".")[2])
        except AttributeError as error:
            raise self.missing() from error

    def optional(self, instance: object) -> Any:
        """The attribute of an instance; None for one without it."""
        return getattr(instance, self.path.rpartition(".")[2], None)

    def item(self, mapping: Mapping[str, Any]) -> Any:
        """The item of a mapping; None where it is not there."""
        return mapping.get(self.key)

    @property
    def key(self) -> str:
        """The key of an item of a mapping."""
        return self.path.partition('["')[2].removesuffix('"]')

    def call(self, kind: type[Result], *args: Any, **kwargs: Any) -> Result:
        """Call it, and check that the result is of this type."""
        return self.run(self.fixed, kind, *args, **kwargs)

    def run(self, function: Callable[..., Any], kind: type[Result], *args: Any, **kwargs: Any) -> Result:
        """Call what was found for it, as in `call`."""
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            if self._is_own(error):
                raise self.changed(error) from error
            raise
        return self.check(result, kind)

    def _is_own(self, error: Exception) -> bool:
        """Whether the call itself or the library in it failed, not a function of ours or of the user that it called."""
        traceback = error.__traceback__.tb_next if error.__traceback__ is not None else None
        if self.runs_model:
            return traceback is None and isinstance(error, TypeError)
        while traceback is not None:
            if traceback.tb_frame.f_globals.get("__name__", "").partition(".")[0] != self.library:
                return False
            traceback = traceback.tb_next
        return True

    @property
    def library(self) -> str:
        """The name of the library."""
        return self.path.partition(".")[0]

    def is_instance(self, value: object, example: object = None) -> bool:
        """Whether a value is an instance of this class; `example` is known to be one."""
        kind = self.check(self.fixed, type)
        if example is not None:
            self.check(example, kind)
        return isinstance(value, kind)

    def check(self, value: object, kind: type[Result]) -> Result:
        """Return a value of the API that must be of this type."""
        if not isinstance(value, kind):
            raise self.changed(f"{type(value).__name__} instead of {kind.__name__}")
        return value

    def having(self, value: Any, method: str) -> Any:
        """Return an object of the API, whose class is private, that must have this method."""
        if not callable(getattr(value, method, None)):
            raise self.changed(f"{type(value).__name__} has no method {method}")
        return value

    @contextlib.contextmanager
    def called_through(
        self, around: Callable[..., Any], *, first: type | None = None, required: bool = False
    ) -> Iterator[None]:
        """Replace a function or method within the context: this thread calls `around` with the original and arguments.

        Other threads call the original.

        Args:
            around: Called instead of it.
            first: The type of its first argument.
            required: Whether the library must call it within the context.

        Raises:
            UnsupportedLibraryError: The installed release does not have it, does not call it, or calls it with other
                arguments.
            ContractError: `around` itself failed.
        """
        original = self.find()
        owner, _, name = self.path.rpartition(".")
        holder = Part(owner, self.reason).find()
        own = vars(holder).get(name, original)
        thread = threading.get_ident()
        was_called = False

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return original(*args, **kwargs)
            nonlocal was_called
            was_called = True
            if first is not None and not (args and isinstance(args[0], first)):
                raise self.changed(f"its first argument is not a {first.__name__}")
            passed_on: list[BaseException] = []

            def run(*run_args: Any, **run_kwargs: Any) -> Any:
                try:
                    return original(*run_args, **run_kwargs)
                except BaseException as error:
                    passed_on.append(error)
                    raise

            try:
                return around(run, *args, **kwargs)
            except ModelExportError:
                raise
            except Exception as error:
                if any(error is other for other in passed_on):
                    raise
                if self._is_own(error):
                    raise self.changed(error) from error
                raise ContractError(
                    f"watching {self.path} failed with {_in_one_line(error)}: a bug in modelexport, please report it"
                ) from error

        setattr(holder, name, replacement)
        try:
            yield
        finally:
            setattr(holder, name, own)
        if required and not was_called:
            raise self.changed(f"{self.library} does not call it")

    def missing(self) -> UnsupportedLibraryError:
        """The error for an API that the installed release does not have."""
        return UnsupportedLibraryError(self.path, *self._releases())

    def changed(self, how: object) -> UnsupportedLibraryError:
        """The error for an API that behaves differently in the installed release; `how` is an error or a text."""
        change = _in_one_line(how) if isinstance(how, Exception) else str(how)
        return UnsupportedLibraryError(self.path, *self._releases(), change=change)

    def _releases(self) -> tuple[str, tuple[str, ...]]:
        try:
            version = str(importlib.import_module(self.library).__version__)
        except ImportError:
            version = "(not installed)"
        return version, SEEN_ON.get(self.library, ())


def _in_one_line(error: Exception) -> str:
    return with_class(error)[:200]
