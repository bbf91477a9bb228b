"""The owners in the metadata of torch's own exporters, interpreted in their favor."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import onnx
import torch

import modelexport
from tests.conformance.bench import Bench, Claim, Column, File, Truth, export_options
from tests.conformance.case import Case
from tests.support.plain import export_plainly, fresh_generated_code

_SCOPES = "pkg.torch.onnx.name_scopes"


def plain_column(bench: Bench, folder: Path, name: str, case: Case, kind: str) -> tuple[Column, bool]:
    """The file as torch writes it, with the owners in its metadata, and whether plain torch can export it.

    Where plain torch cannot, the file is the one that the same exporter writes for us, without our metadata.
    """
    truth = bench.truth(name, case)
    path = folder / f"plain-{name}-{kind}.onnx"
    plainly = True
    try:
        _export(case, kind, path)
    except Exception:  # noqa: BLE001  whatever torch raises, the other call is tried
        plainly = False
        strategy = "fx" if kind.startswith("dynamo") else "htp"
        ours = bench.column(name, case, strategy, kind)
        onnx.save(modelexport.strip_hierarchy(onnx.load(ours.file.path)), path)
    read = read_dynamo if kind.startswith("dynamo") else read_torchscript
    file = File(path, truth)
    claims = {identity: read(node, truth) for identity, node in file.nodes}
    return Column(truth, file, kind, claims, by_call=False), plainly


def _export(case: Case, kind: str, path: Path) -> None:
    model, ((args, kwargs), *_) = case.example()
    options = export_options(case, kind)
    if kind.startswith("dynamo"):
        if case.exporter is not None:
            raise ValueError("not an export of plain torch")
        export_plainly(model, args, kwargs, path, **options)
        return
    fresh_generated_code()
    torch.onnx.export(model, args, str(path), kwargs=kwargs or None, dynamo=False, **options)


Reader = Callable[[onnx.NodeProto, Truth], Claim]


def read_dynamo(node: onnx.NodeProto, truth: Truth) -> Claim:
    """The innermost module among the scopes of the dynamo exporter; the last entry is the node itself."""
    recorded = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), None)
    if recorded is None:
        return Claim(None)
    scopes = [scope for scope in ast.literal_eval(recorded)[:-1] if scope in truth.names]
    return Claim(truth.names[scopes[-1]], label="/".join(scopes)) if scopes else Claim(None)


def read_torchscript(node: onnx.NodeProto, truth: Truth) -> Claim:
    """The module that the scope in a TorchScript node's name stands for: ``/encoder/layer.0/self/MatMul``.

    A name that is no module's counts as a further call of the one without its number: ``/block_1/Add``.
    """
    if not node.name.startswith("/"):
        return Claim(None)
    *scopes, _ = node.name[1:].split("/")
    path = ""
    for scope in scopes:
        found = _inside(path, scope, truth) or _inside(path, re.sub(r"_\d+$", "", scope), truth)
        if found is None:
            return Claim(None)
        path = found
    return Claim(truth.names[path], label="/".join(scopes))


def _inside(path: str, scope: str, truth: Truth) -> str | None:
    """The module `scope` in the module at `path`, or in one that encloses it: containers are never called."""
    around = path
    while True:
        found = f"{around}.{scope}" if around else scope
        if found in truth.names:
            return found
        if not around:
            return None
        around = around.rpartition(".")[0]
