"""`view`: a file as a page for browsers and notebooks, as drawings, and for Model Explorer."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import webbrowser
from collections.abc import Mapping
from pathlib import Path

from modelexport.deadline import reads_files
from modelexport.display import Summary, summarized
from modelexport.errors import InputError, StorageError
from modelexport.gc_pause import gc_paused
from modelexport.limits import DEFAULT_LIMITS, ReadLimits
from modelexport.storage import check_text_target, read_model, write_text
from modelexport.viewing.drawings import as_dot, as_svg, read_level
from modelexport.viewing.html_page import html_frame, html_page
from modelexport.viewing.model_explorer import as_model_explorer, model_explorer_node_data
from modelexport.viewing.page_builder import Content, build_page_data, page_json
from modelexport.viewing.page_data import PageData

FORMATS = {".html": "html", ".svg": "svg", ".dot": "dot", ".gv": "dot", ".json": "model-explorer"}


def _summary(shown: View) -> Summary:
    data = shown.data
    facts = {
        "file": data.file,
        "nodes": len(data.nodes.id),
        "calls": len(data.calls.id),
        "overlays": ", ".join(overlay.id for overlay in data.overlays),
        "notes": len(data.notes),
        "path": shown.path,
    }
    return Summary(facts)


@summarized(_summary)
class View:
    """A view of one file. In a notebook it shows itself as a page.

    Attributes:
        data: The tables that the page shows.
        path: The page, where it was written.
    """

    def __init__(self, data: PageData, path: Path | None = None) -> None:
        self.data = data
        self.path = path

    @functools.cached_property
    def html(self) -> str:
        """The page: one file without references to others."""
        return html_page(self.data.file, page_json(self.data))

    def svg(self, level: str = "") -> str:
        """One level as a drawing: the calls inside of a call, the nodes it owns, and the tensors between them.

        Args:
            level: The id of the call; the empty id is the root.

        Raises:
            InputError: There is no such call.
        """
        return as_svg(read_level(self.data, level))

    def dot(self, level: str = "") -> str:
        """One level in the DOT language of Graphviz.

        Args:
            level: The id of the call; the empty id is the root.

        Raises:
            InputError: There is no such call.
        """
        return as_dot(read_level(self.data, level))

    def model_explorer(self) -> str:
        """The graph in the JSON format of Google's Model Explorer, with modules as groups."""
        return as_model_explorer(self.data)

    def model_explorer_node_data(self) -> dict[str, str]:
        """A file of Model Explorer's node data for each overlay that has values of nodes, by the overlay's id."""
        return model_explorer_node_data(self.data)

    def save(self, path: str | Path, *, level: str = "", overwrite: bool = False) -> Path:
        """Write the view; the file extension chooses the format: .html, .svg, .dot, .json (Model Explorer).

        Args:
            path: The file to write.
            level: For a drawing, the call whose level it shows.
            overwrite: Replace the file if it exists.

        Raises:
            InputError: The file cannot be written, its extension is unknown, or there is no such call.
            StorageError: Writing it failed.
        """
        if not isinstance(path, str | os.PathLike):
            raise InputError(f"a view is saved to a path, not to {type(path).__name__}")
        form = FORMATS.get(Path(path).suffix.lower())
        if form is None:
            raise InputError(f"{path}: unknown file extension. Use {', '.join(FORMATS)}.")
        target = check_text_target(Path(path), force=overwrite)
        write_text(target, self.text(form, level))
        if form == "html":
            self.path = target
        return target

    def save_temporarily(self) -> Path:
        """Write the page to a new folder among the temporary files of the system.

        Raises:
            StorageError: Writing it failed.
        """
        try:
            folder = Path(tempfile.mkdtemp(prefix="modelexport-view-"))
        except OSError as error:
            raise StorageError(f"there is no temporary folder: {error.strerror or error}; give a path") from error
        return self.save(folder / f"{Path(self.data.file).stem or 'model'}.html")

    def text(self, form: str, level: str = "") -> str:
        """The content of a file in one of the formats html, svg, dot, model-explorer.

        Raises:
            InputError: There is no such format or call.
        """
        if form == "html":
            return self.html
        if form == "model-explorer":
            return self.model_explorer()
        if form in ("svg", "dot"):
            return self.svg(level) if form == "svg" else self.dot(level)
        raise InputError(f"{form!r} is not a format of a view: choose html, svg, dot or model-explorer")

    def open(self) -> bool:
        """Show the page in the default browser; a page that was not saved is written to a temporary folder.

        Returns:
            Whether a browser was started.
        """
        page = self.path or self.save_temporarily()
        with contextlib.suppress(webbrowser.Error, OSError):
            return webbrowser.open(page.absolute().as_uri())
        return False

    def _repr_html_(self) -> str:
        return html_frame(self.html)


@reads_files()
def view(
    path: str | Path,
    *,
    profile: str | Path | None = None,
    verification: str | Path | None = None,
    compare: str | Path | None = None,
    axes: Mapping[str, int] | None = None,
    private: bool = False,
    output: str | Path | None = None,
    overwrite: bool = False,
    limits: ReadLimits = DEFAULT_LIMITS,
) -> View:
    """Read a file and everything that is known about it for a page (docs/commands/view.md).

    Args:
        path: The file.
        profile: The JSON of ``modelexport profile``: time, memory and execution provider of each call.
        verification: The JSON of ``modelexport verify``: errors and verdict of each call.
        compare: Another file: what changed from it to this one.
        axes: The sizes of dynamic axes by name, to count FLOPs.
        private: Leave out source lines.
        output: Where to write the page; None writes nothing.
        overwrite: Replace `output` if it exists.
        limits: How large and how deep a file is accepted.

    Raises:
        InputError: A file does not exist, or a report is of another graph; `output` cannot be written.
        FileFormatError: The file is not an ONNX model or has no hierarchy; a report is not one.
        StorageError: Writing the page failed.
    """
    given: object = output  # untyped callers pass anything
    if given is not None and not isinstance(given, str | Path):
        raise InputError(f"output is the path of the page, not {type(given).__name__}")
    target = None if output is None else check_text_target(Path(output), force=overwrite)
    content = Content(profile=profile, verification=verification, compared=compare, axes=axes or {}, private=private)
    with gc_paused():
        found = View(build_page_data(read_model(path, limits), content))
    if target is not None:
        found.save(target, overwrite=overwrite)
    return found
