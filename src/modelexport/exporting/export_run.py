"""One export: capture, tag, write and check, one attempt after the other until a file is accepted."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import onnx_ir as ir

from modelexport.attempt_report import AttemptReport
from modelexport.capture import Capture, DynamicAxes, root_cause
from modelexport.display import counted, with_class
from modelexport.errors import ContractError, ExportError, InputError, ModelExportError, StorageError
from modelexport.exporting.export_writer import StagedExport, staged_export
from modelexport.exporting.progress import Pipeline
from modelexport.exporting.result import ExportResult
from modelexport.exporting.tagged_capture import TaggedCapture, Tagging
from modelexport.hierarchy import PROBE, CheckOutcome, FileCheck
from modelexport.storage import sidecar_path, staged_text
from modelexport.strategies import Attempts, Candidate, Captured, CaptureRequest, capture_model

if TYPE_CHECKING:
    from modelexport.verification import FileChecker, ModelInputs

_LEAST_PROBES = 3
STEPS = ("check", "capture", "attribute", "project", "document", "write", "run")


class _UnwritableError(ExportError):
    """A library cannot serialize the graph of an attempt; that of another may be different."""


@dataclasses.dataclass(frozen=True)
class ExportRun:
    """One export: builds, writes and checks one attempt after the other until a file is accepted."""

    pipeline: Pipeline
    attempts: Attempts
    tagging: Tagging
    target: Path
    graph_files: Mapping[str, Path]
    writing: Mapping[str, Any]
    checker: FileChecker
    probes: int = 0
    # A note on each file that was written and not used.
    rejections: list[str] = dataclasses.field(default_factory=list)

    def run(self, request: CaptureRequest, tried: Sequence[Candidate], dynamic: DynamicAxes | None) -> ExportResult:
        """Write the first file that the check accepts, else the best one."""
        self.checker.start()
        best: tuple[TaggedCapture, FileCheck, ModelInputs, AttemptReport] | None = None
        unwritable: _UnwritableError | None = None
        try:
            for captured in self._captures(request, tried, dynamic):
                tagged = self.tagging.tag(captured, self.pipeline)
                is_unproven = captured.capture.unproven is not None
                try:
                    with self._staged(tagged) as staged:
                        found, inputs = self._check(staged, tagged, is_unproven=is_unproven)
                        if found.is_proven if is_unproven else self.checker.accepts(found):
                            return self._commit(tagged, staged, found)
                except _UnwritableError as error:
                    unwritable = error
                    self.attempts.reject_last(str(error))
                    continue
                rejected = self.attempts.reject_last(str(found), inputs.axes)
                self.rejections.append(f"the file of {rejected.name} was not used: {found}")
                if not is_unproven and (best is None or found.rank < best[1].rank):
                    best = tagged, found, inputs, rejected
        except ModelExportError as error:
            # Neither a bug of ours nor a full disk is a reason to write a file that was found to be wrong.
            if best is None or isinstance(error, ContractError | StorageError):
                raise
        if best is None:
            raise unwritable or ContractError("no attempt was made: please report this")
        tagged, found, inputs, attempt = best
        self.attempts.choose(attempt)
        self.rejections.remove(f"the file of {attempt.name} was not used: {found}")
        with self._staged(tagged) as staged:
            if found.outcome is CheckOutcome.DIFFERENT:
                with self.pipeline.step("run"):
                    found = self.checker.with_origin(found, inputs, staged.path, tagged.document)
            return self._commit(tagged, staged, found)

    def _captures(
        self, request: CaptureRequest, tried: Sequence[Candidate], dynamic: DynamicAxes | None
    ) -> Iterator[Captured]:
        """The captures of all attempts, without those in which an output has the name of another tensor."""
        captures = capture_model(request, tried, dynamic, self.attempts)
        while True:
            with self.pipeline.step("capture") as step:
                captured = next(captures, None)
                if captured is None:
                    return
                taken = _taken_names(captured.capture.model.graph).intersection(request.result_names)
                if taken:
                    # torch gives an output its name even if another tensor has it already: such a file is invalid.
                    names = ", ".join(sorted(taken))
                    self.attempts.reject_last(f"other tensors have the names of its outputs: {names}")
                    request = dataclasses.replace(request, result_names=prefixed(request.result_names, taken))
                    captures = capture_model(request, tried, dynamic, self.attempts)
                    continue
                capture = captured.capture
                step.detail = f"{capture.exporter}, {counted(len(capture.calls), 'call')}"
                _check_graph_kinds(self.graph_files, capture, captured.attempt)
            yield captured

    def _check(
        self, staged: StagedExport, tagged: TaggedCapture, *, is_unproven: bool
    ) -> tuple[FileCheck, ModelInputs]:
        capture, document = tagged.captured.capture, tagged.document
        probes = max(self.probes, _LEAST_PROBES) if is_unproven else self.probes
        with self.pipeline.step("run") as step:
            found, inputs = self.checker.check(staged.path, capture.model, document, capture.other_inputs, probes)
            step.detail = found.outcome.value
            if is_unproven and found.is_wrong and inputs.description.startswith(PROBE):
                found = self.checker.with_origin(found, inputs, staged.path, document)
        return found, inputs

    @contextlib.contextmanager
    def _staged(self, tagged: TaggedCapture) -> Iterator[StagedExport]:
        with contextlib.ExitStack() as stack:
            with self.pipeline.step("write"):
                try:
                    staged = stack.enter_context(staged_export(tagged.model, tagged.file, self.target, **self.writing))
                except (ModelExportError, OSError):
                    raise
                except Exception as error:
                    raise _UnwritableError(f"the graph cannot be written: {with_class(root_cause(error))}") from error
            yield staged

    def _commit(self, tagged: TaggedCapture, staged: StagedExport, check: FileCheck) -> ExportResult:
        # The reason can contain paths of this machine.
        shown = msgspec.structs.replace(check, reason="") if self.tagging.private else check
        rejections = () if self.tagging.private else self.rejections
        recorded = None if self.checker.is_off else shown
        document = msgspec.structs.replace(tagged.document, check=recorded, notes=(*tagged.document.notes, *rejections))
        staged.write_sidecar(document)
        with contextlib.ExitStack() as stack:
            for path in self.graph_files.values():
                stack.enter_context(staged_text(path, tagged.captured.capture.graph_text()))
            files = staged.commit()
        return ExportResult(
            onnx_path=self.target,
            sidecar_path=sidecar_path(self.target),
            files=(*files, *self.graph_files.values()),
            document=document,
            attempts=tuple(self.attempts.reports),
            steps=tuple(self.pipeline.reports),
            dynamic_axes=tagged.captured.dynamic_axes,
            notes=(*tagged.notes, *self.rejections),
            check=check,
        )


def prefixed(names: Iterable[str], taken: Collection[str]) -> tuple[str, ...]:
    """The names of the outputs, with ``output.`` in front where another tensor has that name."""
    return tuple(f"output.{name}" if name in taken else name for name in names)


def _taken_names(graph: ir.Graph) -> set[str]:
    """The names of all tensors of the main graph that are not its outputs."""
    outputs = {id(value) for value in graph.outputs}
    produced = (value for node in graph for value in node.outputs)
    return {
        value.name or ""
        for value in (*graph.inputs, *graph.initializers.values(), *produced)
        if id(value) not in outputs
    }


def _check_graph_kinds(kinds: Iterable[str], capture: Capture, attempt: AttemptReport) -> None:
    for kind in kinds:
        if kind != capture.graph_kind:
            raise InputError(
                f"there is no {kind} graph to write: strategy {attempt.strategy!r} does not trace one; "
                f"choose strategy {'htp' if kind == 'jit' else 'fx'!r}, or omit {kind}_graph_path"
            )
