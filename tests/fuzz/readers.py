"""Every way in which a file is read: library calls and commands, each giving as text what it says."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from unittest import mock

import msgspec
import numpy as np
import onnx_ir as ir
import typer

import modelexport
from modelexport.analysis.comparison.model_comparison import compare_models
from modelexport.analysis.extraction.extractor import Extractor
from modelexport.analysis.query.node_selection import select
from modelexport.analysis.retagging.retagger import retag
from modelexport.analysis.validation import validator
from modelexport.analysis.validation.rule import ValidatedFile
from modelexport.analysis.validation.store_repair import repair
from modelexport.cli import analyze as analyze_command
from modelexport.cli import compare as compare_command
from modelexport.cli import extract as extract_command
from modelexport.cli import select as select_command
from modelexport.cli import tree as tree_command
from modelexport.cli import validate as validate_command
from modelexport.cli.output import Format, Output, ReportFile
from modelexport.cli.static_profile import static_output
from modelexport.ort.model_checks import ModelChecks
from modelexport.profiling.static_cost import graph_cost, profile_statically
from modelexport.sources.inputs.from_files import read_inputs
from modelexport.storage.metadata_stores import read_sidecar, strip_hierarchy
from modelexport.storage.recovery import recover_document
from modelexport.storage.transaction import sidecar_path
from tests.fuzz import nasty
from tests.fuzz.bytes_mutations import mutate_bytes
from tests.fuzz.cases import Case, Workspace
from tests.support import zoo

# The two rules that ask onnx itself, in a child process: tests/unit/ort/test_model_checks.py, and every so often here.
CONFINED = frozenset({"onnx-checker", "shape-inference"})
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_SAFE_NAME = re.compile(r"(?!(?i:con|nul|aux|prn)\b)[\w@-][\w.@-]{0,199}")
_MOST_CALLS = 3
_SHARE_WITH_INFERENCE = 0.02
_RUN_LIMITS = modelexport.RunLimits(seconds=20)


class UnsafeOutputError(Exception):
    """What is printed could do something to whoever prints it."""


def _load(case: Case, workspace: Workspace, draw: Random) -> str:
    loaded = modelexport.load(case.path)
    loaded.tag_counts()
    said = []
    for graph in (loaded.model.graph, *(function.graph for function in loaded.model.functions.values())):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                # What onnx_ir makes of a tensor is its own; that it comes from the folder is ours.
                with contextlib.suppress(Exception):
                    said.append(value.const_value.tobytes().decode("latin-1"))
    return "".join(said)


def _read_model(case: Case, workspace: Workspace, draw: Random) -> str:
    file = modelexport.read_model(case.path)
    strip_hierarchy(file.proto)
    return f"{file.tag_counts()} {file.missing}"


def _sidecar(case: Case, workspace: Workspace, draw: Random) -> str:
    path = sidecar_path(case.path)
    if path.is_symlink() or not path.is_file():
        return ""
    document = read_sidecar(path)
    for module in document.modules[:5]:
        document.module_information(module.path)
    return f"{document.kinds} {document.coverage} {len(document.tree())}"


def _recover(case: Case, workspace: Workspace, draw: Random) -> str:
    file = modelexport.read_model(case.path)
    found = recover_document(file.proto, file.nodes, digest=file.graph_hash)
    return msgspec.json.encode(found.document).decode()


def _tree(case: Case, workspace: Workspace, draw: Random) -> str:
    with _printed() as text:
        for form in Format:
            tree_command.tree(
                file=case.path,
                depth=draw.choice((None, 0, 2)),
                everything=draw.random() < 0.5,
                output_format=form,
                report=ReportFile(output=None, force=False),
                out=Output(),
            )
    return _harmless(text.getvalue())


def _analyze(case: Case, workspace: Workspace, draw: Random) -> str:
    selector = draw.choice((None, None, "class:*", "op:Gemm or blk", nasty.name(draw)))
    report = modelexport.analyze(case.path, selector=selector, depth=None, resolution=draw.random() < 0.5)

    def text(form: str, width: int = 80, *, detailed: bool = False) -> str:
        return analyze_command.render(report, analyze_command.AnalysisFormat(form), width, limit=8, detailed=detailed)

    json.loads(text("json"))
    _safe_cells(text("csv"))
    return _harmless(text("human") + text("human", 10_000, detailed=True) + repr(report) + report._repr_html_())


def _static_cost(case: Case, workspace: Workspace, draw: Random) -> str:
    # Shape inference runs in a child process, which takes half a second.
    if draw.random() < _SHARE_WITH_INFERENCE:
        report = profile_statically(case.path)
    else:
        with mock.patch.object(graph_cost, "type_inference", _no_inference):
            report = profile_statically(case.path)
    rows = report.rows(draw.choice(("call", "module", "class", "op")), depth=draw.choice((None, 0, 2)))

    def text(form: str) -> str:
        return static_output(report, rows, "call", form, 8, 80)

    json.loads(text("json"))
    _safe_cells(text("csv"))
    return _harmless(text("table") + repr(report) + report._repr_html_())


@contextlib.contextmanager
def _no_inference(size: int, *, declared: bool) -> Iterator[Callable[[object], None]]:
    yield lambda model: None


def _view(case: Case, workspace: Workspace, draw: Random) -> str:
    with mock.patch.object(graph_cost, "type_inference", _no_inference):
        shown = modelexport.view(case.path, compare=workspace.tagged(case.seed) if draw.random() < 0.1 else None)
    data = shown.html.partition('id="model-data">')[2].partition("</script>")[0]
    if set("<>&") & set(data):
        raise UnsafeOutputError("a name is part of the page's own HTML")
    calls = [shown.data.strings[name] for name in shown.data.calls.id]
    level = draw.choice(calls)
    if "<script>alert" in shown.svg(level):
        raise UnsafeOutputError("a name is part of the drawing's own markup")
    for text in (data, shown.model_explorer(), *shown.model_explorer_node_data().values()):
        json.loads(text)
    return _harmless(shown.svg(level) + shown.dot(level) + repr(shown)) + data


def _select(case: Case, workspace: Workspace, draw: Random) -> str:
    found = select(case.path, draw.choice(("*", "class:*", "op:*", "not blk", nasty.name(draw))))
    forms = select_command.SelectionFormat
    json.loads(select_command._as_text(found, forms.JSON))
    text = select_command._as_text(found, draw.choice([form for form in forms if form is not forms.HUMAN]))
    json.loads(text)
    return _harmless(select_command._as_text(found, forms.HUMAN))


def _validate(case: Case, workspace: Workspace, draw: Random) -> str:
    baseline = case.path if draw.random() < 0.1 else None
    subject = ValidatedFile(case.path, baseline)
    # In this process, types come from the file alone: what onnx infers is asked for elsewhere.
    confined = case.number % 250 == 0
    if not confined:
        subject.model_checks = ModelChecks("", "", None)
    rules = [rule for rule in validator.RULES if confined or rule.id not in CONFINED]
    report = validator.check(subject, rules)
    forms = validate_command.ValidationFormat
    shown = _harmless(validate_command.render(report, forms.HUMAN, 80))
    return shown + validate_command.render(report, forms.JSON, 80) + validate_command.render(report, forms.SARIF, 80)


def _extract(case: Case, workspace: Workspace, draw: Random) -> str:
    extractor = Extractor(case.path)
    calls = [call.id for call in extractor.document.calls]
    said = []
    for target in (*draw.sample(calls, min(_MOST_CALLS, len(calls))), nasty.name(draw)):
        with contextlib.suppress(modelexport.ModelExportError):
            submodel = extractor.extract(target)
            said.append(str(submodel.notes))
            extractor.subgraph(target)
    return "".join(said)


def _extract_files(case: Case, workspace: Workspace, draw: Random) -> str:
    folder = workspace.results / "submodels"
    with _printed() as text:
        extract_command.extract(file=case.path, select="*", output=folder, out=Output())
    for path in folder.iterdir():
        if not _SAFE_NAME.fullmatch(path.name):
            raise UnsafeOutputError(f"a file is named {path.name[:80]!r}")
    return _harmless(text.getvalue()) + _written(folder)


def _compare(case: Case, workspace: Workspace, draw: Random) -> str:
    files = [case.path, workspace.tagged(case.seed)]
    draw.shuffle(files)
    found = compare_models(*files, contents=draw.random() < 0.3)
    forms = compare_command.ComparisonFormat
    page = "".join(compare_command.render(found, form, 100, 80) for form in (forms.HTML, forms.MARKDOWN))
    page += found._repr_html_()
    if "<script>alert" in page:
        raise UnsafeOutputError("a name is part of the page's own HTML")
    json.loads(compare_command.render(found, forms.JSON, 100, 80))
    return _harmless(compare_command.render(found, forms.HUMAN, 100, 80) + repr(found)) + page


def _retag_onto(case: Case, workspace: Workspace, draw: Random) -> str:
    # Now and then by value: that runs the file, in a process that takes a second to start.
    by_value = case.number % 200 == 0
    report = retag(case.path, workspace.tagged(case.seed), workspace.results / "onto.onnx", by_value=by_value)
    return json.dumps(report.as_dict()) + _written(workspace.results)


def _retag_from(case: Case, workspace: Workspace, draw: Random) -> str:
    report = retag(workspace.tagged(case.seed), case.path, workspace.results / "from.onnx")
    return json.dumps(report.as_dict()) + _written(workspace.results)


def _inputs(case: Case, workspace: Workspace, draw: Random) -> str:
    """Example inputs in a file, damaged like the model."""
    content = io.BytesIO()
    np.savez(
        content, **{draw.choice(("x", "a.0", "a.b.c", nasty.name(draw).replace("/", "|")[:9000])): np.ones((2, 3))}
    )
    path = workspace.inside / "inputs.npz"
    damaged = mutate_bytes(draw, content.getvalue(), case.path.read_bytes()) if draw.random() < 0.8 else b""
    path.write_bytes(damaged or content.getvalue())
    return str(read_inputs(path))


def _is_run(case: Case) -> bool:
    """Whether the file runs in onnxruntime, beside its model in PyTorch: a second each."""
    return case.number % 250 == 1


def _tag(case: Case, workspace: Workspace, draw: Random) -> str:
    if not _is_run(case):
        return ""
    example = zoo.build(case.seed.example)
    found = modelexport.tag_file(
        case.path, example.model, example.inputs, workspace.results / "tagged.onnx", limits=_RUN_LIMITS
    )
    return repr(found) + _written(workspace.results)


def _verify(case: Case, workspace: Workspace, draw: Random) -> str:
    if not _is_run(case):
        return ""
    example = zoo.build(case.seed.example)
    report = modelexport.verify_modules(case.path, example.model, example.inputs, limits=_RUN_LIMITS)
    return _harmless(repr(report)) + report._repr_html_()


def _repair(case: Case, workspace: Workspace, draw: Random) -> str:
    """In place, so it comes last. What it wrote can be read."""
    found = repair(case.path, overwrite=True)
    try:
        modelexport.read_model(case.path)
    except modelexport.ModelExportError as error:
        raise UnsafeOutputError(f"what repair wrote cannot be read: {error}") from error
    return f"{found.origin} {found.missing}"


Reader = Callable[[Case, Workspace, Random], str]
READERS: dict[str, Reader] = {
    "load": _load,
    "read_model": _read_model,
    "sidecar": _sidecar,
    "recover": _recover,
    "tree": _tree,
    "analyze": _analyze,
    "static cost": _static_cost,
    "view": _view,
    "select": _select,
    "validate": _validate,
    "extract": _extract,
    "extract files": _extract_files,
    "compare": _compare,
    "retag onto": _retag_onto,
    "retag from": _retag_from,
    "inputs": _inputs,
    "tag": _tag,
    "verify": _verify,
    "repair": _repair,
}
# In a test run, those that take long get one of so many inputs: projecting, matching, and writing files.
SPARSELY = {"view": 4, "extract": 2, "extract files": 24, "compare": 4, "retag onto": 8, "retag from": 4, "repair": 8}


@contextlib.contextmanager
def _printed() -> Iterator[io.StringIO]:
    text = io.StringIO()
    with (
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(text),
        contextlib.suppress(typer.Exit),
    ):
        yield text


def _harmless(text: str) -> str:
    found = _CONTROL.search(text)
    if found:
        raise UnsafeOutputError(f"{found[0]!r} in {text[max(0, found.start() - 40) : found.end() + 40]!r}")
    return text


def _safe_cells(text: str) -> None:
    for row in csv.reader(io.StringIO(text, newline="")):
        for cell in row:
            if cell[:1] in ("=", "+", "@", "\t", "\r") or (cell[:1] == "-" and not _is_number(cell)):
                raise UnsafeOutputError(f"a spreadsheet takes {cell[:40]!r} for a formula")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _written(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in sorted(folder.iterdir()) if path.is_file())
