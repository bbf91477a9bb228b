"""An optional library that is installed and broken does not stop an export that does not need it."""

from __future__ import annotations

import json
import os
import textwrap
from pathlib import Path

import pytest
from tests.support.command_process import FACTORIES, ROOT, in_process, plain_onnx

EXPORT = """
import sys
import torch
import transformers
import modelexport

class Net(torch.nn.Sequential):
    def forward(self, x):
        # Looked at, without being run, to find control flow.
        return super().forward(x) if x.dim() else transformers.activations(x)

for strategy in ("auto", "fx", "htp", "usage_based"):
    model = Net(torch.nn.Linear(3, 4), torch.nn.ReLU())
    result = modelexport.export_model(model, (torch.ones(2, 3),), f"{sys.argv[1]}/{strategy}.onnx", strategy=strategy)
    assert not result.check.is_wrong, result.check
print("exported beside", transformers.__version__)
"""


def package(folder: Path, name: str, code: str) -> str:
    """Write a package; returns the PYTHONPATH with which it is found before an installed one."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(textwrap.dedent(code))
    return os.pathsep.join([str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")])


def lazy(error: str) -> str:
    """A package like transformers, whose classes are imported when they are looked up."""
    return f"""
        __version__ = "5.0"
        def __getattr__(name):
            if name.startswith("__"):
                raise AttributeError(name)
            raise {error}(f"Could not import module {{name!r}}")
    """


@pytest.mark.parametrize("error", ["ModuleNotFoundError", "ImportError", "RuntimeError"])
def test_every_strategy_exports_beside_a_lazy_library_that_fails(tmp_path: Path, error: str) -> None:
    path = package(tmp_path / "site", "transformers", lazy(error))
    outcome = in_process(tmp_path, script=EXPORT, PYTHONPATH=path)
    assert outcome.code == 0, outcome.stderr
    assert "exported beside 5.0" in outcome.stdout


def test_command_exports_where_a_library_of_transformers_is_broken(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = package(tmp_path, "torchvision", 'raise RuntimeError("operator torchvision::nms does not exist")')
    described = tmp_path / "torchvision-0.26.dist-info" / "METADATA"
    described.parent.mkdir()
    described.write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.26\n")
    (tmp_path / "own_model.py").write_text(f"import transformers\nfrom {FACTORIES} import Net\n")
    outcome = in_process("export", "own_model:Net", tmp_path / "o.onnx", "--input-shape", "x=1x3x4x4", PYTHONPATH=path)
    assert outcome.code == 0, outcome.stderr


def test_tag_with_a_folder_says_which_library_is_broken(tmp_path: Path) -> None:
    path = package(tmp_path / "site", "transformers", lazy("ImportError"))
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "bert"}))
    file = plain_onnx(tmp_path / "plain.onnx")
    outcome = in_process("tag", file, "--model", model, "-o", tmp_path / "o.onnx", PYTHONPATH=path)
    assert outcome.code == 2
    assert "Could not import module 'AutoConfig'" in outcome.error
