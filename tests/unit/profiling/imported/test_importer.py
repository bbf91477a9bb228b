"""Profiles of other tools: times by module from recorded samples, and files that are not what they should be."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from modelexport.errors import FileFormatError, InputError
from modelexport.profiling.imported import import_profile
from modelexport.profiling.records import OwnedKernel
from modelexport.profiling.report import ProfileReport

SAMPLES = Path(__file__).parents[3] / "data" / "profiles"
MODEL = SAMPLES / "cnn.onnx"
TENSORRT = f"trt:{SAMPLES}/tensorrt_profile.json,{SAMPLES}/tensorrt_layers.json"
COPY = "Reformatting CopyNode for Input Tensor 0 to node_Conv_17 + node_relu"
OPENVINO = f"openvino:{SAMPLES}/openvino_exec_graph.xml"


def kernels(report: ProfileReport) -> dict[str, OwnedKernel]:
    return {kernel.name: kernel for kernel in report.kernels}


def microseconds(report: ProfileReport, call: str) -> float:
    return round(report[call].own.mean * 1e6, 3)


def test_tensorrt_layers_belong_to_the_modules_of_the_nodes_in_their_metadata() -> None:
    report = import_profile(MODEL, TENSORRT)
    assert report.runtime == "TensorRT (trtexec)"
    assert microseconds(report, "features.0.act") == 12 + 4
    assert microseconds(report, "features.1") == 5
    assert microseconds(report, "features.2.act") == 20
    # The kernel of the mean and of the head is the head's, whose node computes its output.
    assert microseconds(report, "head") == 9
    fused = kernels(report)["node_Conv_17 + node_relu"]
    assert fused.sources == ("getitem", "relu")
    assert (fused.op, fused.kind) == ("CaskConvolution", "fused")
    assert "features.0.conv" in fused.contributors
    # A copy before a layer counts with that layer.
    assert kernels(report)[COPY].sources == fused.sources
    assert round(report.session.mean * 1e6) == 50
    assert any("means of 1,000 runs" in note for note in report.notes)


def test_tensorrt_layers_are_found_by_name_without_layer_information() -> None:
    report = import_profile(MODEL, f"trt:{SAMPLES}/tensorrt_profile.json")
    found = kernels(report)
    assert found["node_Conv_17 + node_relu"].sources == ("getitem", "relu")
    assert found[COPY].sources == ("getitem", "relu")
    # The name of this kernel says nothing.
    assert found["__myl_MeanFc_myl3_0"].kind == "unmatched"


def test_openvino_layers_belong_to_the_modules_of_the_original_layers() -> None:
    report = import_profile(MODEL, OPENVINO)
    assert microseconds(report, "features.1") == 6
    # The last layer has the name of its output, not of its node.
    assert microseconds(report, "head") == 16
    convolution = kernels(report)["node_Conv_17/WithoutBiases"]
    assert convolution.sources == ("getitem", "relu")
    # "node_Conv_17/WithoutBiases" is a step of node_Conv_17, not a node that the file lacks.
    assert not any("does not have" in note for note in report.notes)
    # Changes of layout that OpenVINO inserted count with the layer behind them: 14 and 33 and its own 16.
    assert microseconds(report, "features.0.act") == 14 + 33 + 16
    assert not any(kernel.kind == "unmatched" for kernel in report.kernels)
    # Weights and what was computed when the model was compiled are not executed.
    assert len(report.kernels) == 8


def test_profile_of_onnxruntime_with_its_optimized_graph() -> None:
    source = f"ort:{SAMPLES}/onnxruntime_profile.json,{SAMPLES}/onnxruntime_optimized.onnx"
    report = import_profile(MODEL, source)
    assert report.settings.runs == 3
    found = kernels(report)
    assert {kernel.op for kernel in report.kernels} == {"FusedConv", "MaxPool", "ReduceMean", "Gemm"}
    assert found["node_Conv_17"].kind == "fused"
    assert found["node_linear"].call == "head"
    assert report.notes == ()


def profiled(folder: Path, level: str) -> Path:
    options = onnxruntime.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = onnxruntime.InferenceSession(str(MODEL), options)
    session.run(None, {"x": np.zeros((2, 3, 16, 16), np.float32)})
    return Path(session.end_profiling())


@pytest.mark.parametrize("level", ["ORT_ENABLE_ALL", "ORT_ENABLE_BASIC"])
def test_graph_behind_a_profile_of_onnxruntime_is_made_again_here(tmp_path: Path, level: str) -> None:
    report = import_profile(MODEL, f"ort:{profiled(tmp_path, level)}")
    assert not any(kernel.kind == "unmatched" for kernel in report.kernels)
    assert report.notes == ()


def test_selector_chooses_the_calls_of_an_imported_profile() -> None:
    report = import_profile(MODEL, OPENVINO, select="features.0")
    assert {row.name.partition(".act")[0] for row in report.rows()} == {"features.0"}


@pytest.fixture
def other_model(tmp_path: Path) -> Path:
    """The same model with other names: a profile of the first is not one of it."""
    model = onnx.load(MODEL)
    for node in model.graph.node:
        node.name = f"other_{node.name}"
        for names in (node.input, node.output):
            for position, name in enumerate(names):
                if name not in {weight.name for weight in model.graph.initializer}:
                    names[position] = f"other_{name}"
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.name = f"other_{value.name}"
    path = tmp_path / "other.onnx"
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("source", [TENSORRT, OPENVINO, f"ort:{SAMPLES}/onnxruntime_profile.json"])
def test_profile_of_another_file_is_refused(other_model: Path, source: str) -> None:
    with pytest.raises(FileFormatError, match=r"is a profile of another file: .* are not in this one"):
        import_profile(other_model, source)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("profile.json", "write ort:profile.json"),
        ("ncnn:profile.json", "write ort:profile.json"),
        ("trt:", "write ort:profile.json"),
        ("trt:a,b,c", "more than 2 files"),
        ("openvino:nothing.xml", "nothing.xml is not a file"),
        ("trt:/dev/zero", "is not a file"),
        (f"ort:{'x' * 5000}", "x… is not a file: --import"),
        (f"openvino:{'x' * 5000},b", "… has more than 1 file:"),
        ("ort:a\0b", "is not a file: --import"),
    ],
)
def test_source_that_cannot_be_used_is_a_short_input_error(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as raised:
        import_profile(MODEL, source)
    assert len(str(raised.value)) < 400


def layers(*entries: object) -> str:
    return json.dumps(entries)


def graph(layer: str, before: str = "") -> str:
    return f'<?xml version="1.0"?>{before}<net><layers><layer id="0" name="a" type="B">{layer}</layer></layers></net>'


_BOMB = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 9))
WRONG: dict[str, tuple[str, str, str]] = {
    "not JSON": ("trt", "{", "is not a profile of TensorRT"),
    "deep JSON": ("trt", "[" * 100_000, "is not a profile of TensorRT"),
    "other JSON": ("trt", '{"a": 1}', "is not a profile of TensorRT"),
    "layer information only": ("trt", '{"Layers": ["a", "b"]}', "has no times of layers"),
    "no layer": ("trt", layers({"count": 3}), "has no times of layers"),
    "negative time": ("trt", layers({"name": "a", "averageMs": -1}), "is not a profile of TensorRT"),
    "no node": ("trt", layers({"name": "a", "averageMs": 1}), "names no ONNX node"),
    "onnxruntime for TensorRT": ("ort", layers({"name": "a", "averageMs": 1}), "profile of onnxruntime"),
    "no run": ("ort", "[]", "0 complete runs"),
    "number that is none": (
        "ort",
        layers(
            {"name": "a_kernel_time", "ts": 1, "dur": 1, "args": {"activation_size": "many"}},
            {"name": "model_run", "ts": 0, "dur": 9, "args": {}},
        ),
        "cannot be read as a profile of onnxruntime",
    ),
    "time that no clock has": (
        "ort",
        layers({"name": "model_run", "ts": 0, "dur": 10**400, "args": {}}),
        "cannot be read as a profile of onnxruntime",
    ),
    "not XML": ("openvino", "[]", "is not an execution graph of OpenVINO"),
    "other XML": ("openvino", "<svg/>", "its root is <svg>"),
    "entities": ("openvino", graph("&e8;", f'<!DOCTYPE net [<!ENTITY e0 "ha">{_BOMB}]>'), "declares a document type"),
    "file entity": (
        "openvino",
        graph("&e;", '<!DOCTYPE net [<!ENTITY e SYSTEM "file:///etc/passwd">]>'),
        "declares a document type",
    ),
    "no time": ("openvino", graph('<data execTimeMcs="not_executed"/>'), "has no layer with a time"),
    "time that is none": ("openvino", graph('<data execTimeMcs="nan"/>'), "a layer took nan"),
    "time in words": ("openvino", graph('<data execTimeMcs="fast"/>'), "is not an execution graph of OpenVINO"),
}


@pytest.mark.parametrize("case", WRONG)
def test_file_that_is_not_such_a_profile_is_refused(tmp_path: Path, case: str) -> None:
    kind, content, message = WRONG[case]
    path = tmp_path / "profile"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(FileFormatError, match=message) as caught:
        import_profile(MODEL, f"{kind}:{path}")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["ort", "trt", "openvino"])
def test_profile_beyond_the_limit_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "profile"
    path.touch()
    os.truncate(path, 2**30 + 1)
    with pytest.raises(FileFormatError, match="has more than"):
        import_profile(MODEL, f"{kind}:{path}")


@pytest.mark.parametrize(
    ("written", "replaced"), [("\\u001e", ""), ("\\u001e", "\\u001f"), ("ONNX Layer", "Some Layer")], ids=repr
)
def test_nodes_are_found_with_other_separators_and_with_metadata_of_another_form(
    tmp_path: Path, written: str, replaced: str
) -> None:
    text = (SAMPLES / "tensorrt_layers.json").read_text(encoding="utf-8")
    path = tmp_path / "layers.json"
    path.write_text(text.replace(written, replaced), encoding="utf-8")
    report = import_profile(MODEL, f"trt:{path},{SAMPLES}/tensorrt_profile.json")
    assert kernels(report)["node_Conv_17 + node_relu"].sources == ("getitem", "relu")
