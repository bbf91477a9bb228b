"""What the commands that run a model share: their progress, and how they show the result."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

from rich.status import Status

from modelexport.cli.output import message_console, printable, result_console

if TYPE_CHECKING:
    from modelexport.result import ExportResult, ProgressEvent


def silence_libraries() -> None:
    """The exporter logs and warns about its own inner life; what matters to the user reaches them as our errors."""
    for name in ("torch.onnx", "torch._export", "onnxscript", "onnx_ir", "transformers"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.simplefilter("ignore")


def parse_exceptions(text: str | None) -> list[str] | str | None:
    """The torch.nn exceptions as a list of names, or the words that stand for all and none."""
    if text is None or text in ("all", "none"):
        return text
    return [name.strip() for name in text.split(",") if name.strip()]


class Progress:
    """Shows the steps of an export as they begin and end."""

    def __init__(self) -> None:
        self._console = message_console()
        self._status: Status | None = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def __call__(self, event: ProgressEvent) -> None:
        self._stop()
        step = f"{event.number}/{event.total} {event.step:<9}"
        if event.finished:
            self._console.print(f"  {step} {event.seconds:6.2f} s  {event.detail}".rstrip(), markup=False)
        elif self._console.is_terminal:
            self._status = self._console.status(step)
            self._status.start()

    def _stop(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None


def show_result(result: ExportResult) -> None:
    """What was done, in a few lines."""
    console = result_console()
    kinds = ", ".join(f"{count} {kind}" for kind, count in result.kinds.items())
    lines = [
        f"{len(result.document.nodes)} nodes, {result.coverage:.0%} with an owner ({kinds})",
        f"{len(result.document.modules)} modules, {len(result.document.calls)} calls, strategy {result.strategy}",
        *(f"wrote {path}" for path in result.files),
        f"next: modelexport tree {result.onnx_path}",
    ]
    for line in lines:
        console.print(printable(line), markup=False)
