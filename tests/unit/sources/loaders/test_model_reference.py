"""What a MODEL reference leads to: the right source with its arguments, or one clear line of why not."""

from __future__ import annotations

import gc
import io
import json
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.tiny_models import Trap

from modelexport.errors import InputError, ModelExportError, ModelSourceError
from modelexport.sources.loaders.model_reference import load_model
from modelexport.sources.loaders.sourced_model import LoadOptions, size_limit

FACTORIES = "tests.support.factories"


def refusal(reference: str | Path, options: LoadOptions | None = None) -> str:
    with pytest.raises(ModelSourceError) as raised:
        load_model(str(reference), options or LoadOptions())
    return str(raised.value)


# --- python references -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("(4, 3)", (4, 3, True)),
        ("(4, out_features=3, bias=False)", (4, 3, False)),
        ("(in_features=-2 + 0j and 4, out_features=3)", None),
        (" ( 4 , 3 ) ", (4, 3, True)),
    ],
)
def test_factory_gets_its_arguments_as_literals(arguments: str, expected: tuple[Any, ...] | None) -> None:
    if expected is None:
        assert "is not a literal" in refusal(f"torch.nn:Linear{arguments}")
        return
    model: Any = load_model(f"torch.nn:Linear{arguments}").model
    assert (model.in_features, model.out_features, model.bias is not None) == expected


def test_file_is_imported_by_its_path_with_the_modules_beside_it(tmp_path: Path) -> None:
    (tmp_path / "sizes_of_mine.py").write_text("WIDTH = 3\n")
    # The name is that of a library that is already imported.
    file = tmp_path / "json.py"
    file.write_text(
        "import torch\nfrom sizes_of_mine import WIDTH\n\n\nclass Net(torch.nn.Linear):\n"
        "    def __init__(self, size=WIDTH):\n        super().__init__(size, WIDTH)\n"
    )
    assert load_model(f"{file}:Net").model.in_features == 3
    assert load_model(f"{file}:Net(size=5)").model.in_features == 5
    assert sys.modules["json"] is json
    assert "missing.py" in refusal(f"{tmp_path}/missing.py:Net")
    assert "has no 'Other'" in refusal(f"{file}:Other")
    assert f"{file}:factory" in refusal(file)


def test_configuration_that_asks_for_too_many_modules_is_refused_while_they_are_built() -> None:
    with (
        pytest.raises(ModelSourceError, match=r"huge: .*over 5 modules"),
        size_limit("huge", most_modules=5),
    ):
        torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(6)))
    assert len(torch.nn.Sequential(*(torch.nn.ReLU() for _ in range(6)))) == 6


def test_garbage_collector_is_paused_until_the_number_of_modules_is_reached() -> None:
    """It would take half of the time."""
    with size_limit("huge"):
        assert not gc.isenabled()
    assert gc.isenabled()


def test_factory_below_a_class_and_structured_arguments_can_be_named() -> None:
    model: Any = load_model("torch.nn:Unflatten(1, unflattened_size=(2, 3))").model
    assert model.unflattened_size == (2, 3)
    assert isinstance(load_model("torch:nn.Linear(1, 1)").model, torch.nn.Linear)


@pytest.mark.parametrize(
    "arguments",
    [
        "(__import__('pathlib').Path('{marker}').touch())",
        "(size=open('{marker}', 'w'))",
        "(*[4, 3])",
        "(**dict(size=1))",
        "(4, [x for x in (1, 2)])",
        "(4)(3)",
        "(4",
        "[4]",
        " + 1",
        "('\x00')",
        "(" * 500 + ")" * 500,
    ],
)
def test_nothing_but_literals_is_evaluated(arguments: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    message = refusal(f"torch.nn:Linear{arguments.replace('{marker}', str(marker))}")
    assert "literal" in message or "package.module:factory" in message
    assert not marker.exists()


def test_factory_may_import_modules_of_the_working_folder_while_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lazy_sizes.py").write_text("size = 5\n", encoding="utf-8")
    (tmp_path / "lazy_factory.py").write_text(
        "import torch\n\ndef build():\n    import lazy_sizes\n    return torch.nn.Linear(lazy_sizes.size, 1)\n",
        encoding="utf-8",
    )
    path_before = list(sys.path)
    model: Any = load_model("lazy_factory:build").model
    assert model.in_features == 5
    assert sys.path == path_before


def test_model_that_is_there_takes_no_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ready_made_model.py").write_text("import torch\nmodel = torch.nn.Linear(1, 1)\n")
    monkeypatch.chdir(tmp_path)
    assert isinstance(load_model("ready_made_model:model").model, torch.nn.Linear)
    assert "not a factory" in refusal("ready_made_model:model(1)")


def test_failing_call_shows_its_arguments_and_a_failing_name_how_to_give_some() -> None:
    assert f"{FACTORIES}:needs_arguments('a') failed with" in refusal(f"{FACTORIES}:needs_arguments('a')")
    message = refusal(f"{FACTORIES}:needs_arguments")
    assert f"{FACTORIES}:needs_arguments() failed with" in message
    assert "factory(64, name='a')" in message


def test_inputs_of_a_factory_come_along() -> None:
    sourced = load_model(f"{FACTORIES}:net_with_inputs")
    assert sourced.example_inputs[0].shape == (2, 3, 4, 4)
    assert sourced.processor is None


@pytest.mark.parametrize(
    "given",
    [
        {"task": "text-classification"},
        {"revision": "main"},
        {"trust_remote_code": True},
        {"dtype": "float16"},
        {"attn_implementation": "eager"},
        {"random_weights": True},
    ],
)
@pytest.mark.parametrize("reference", [f"{FACTORIES}:net", "builtin:bert-tiny"])
def test_option_that_a_source_has_no_use_for_is_refused_by_name(reference: str, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=f"{reference} does not support --{next(iter(given)).replace('_', '-')}"):
        load_model(reference, LoadOptions(**given))


# --- files -----------------------------------------------------------------------------------------------------


# torch deprecates what is refused here
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.parametrize("name", ["model.pt", "model.pt2", "model"])
def test_torchscript_file_is_refused_with_advice_whatever_its_name(tmp_path: Path, name: str) -> None:
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / name)
    message = refusal(tmp_path / name)
    assert "TorchScript" in message
    assert "package.module:factory" in message
    assert str(tmp_path / name) in message


def checkpoint_in_a_zip(marker: Path) -> bytes:
    stream = io.BytesIO()
    torch.save({"weight": torch.ones(1), "trap": Trap(marker)}, stream)
    return stream.getvalue()


def checkpoint_of_old(marker: Path) -> bytes:
    stream = io.BytesIO()
    torch.save({"trap": Trap(marker)}, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


PICKLES = {
    "zip": checkpoint_in_a_zip,
    "old": checkpoint_of_old,
    "plain": lambda marker: pickle.dumps(Trap(marker)),
    "text": lambda marker: pickle.dumps(Trap(marker), protocol=0),
}


@pytest.mark.parametrize("name", ["model.pt", "model.pth", "pytorch_model.bin", "model.ckpt", "model"])
@pytest.mark.parametrize("kind", PICKLES)
def test_pickle_is_refused_and_not_opened(tmp_path: Path, kind: str, name: str) -> None:
    marker = tmp_path / "marker"
    (tmp_path / name).write_bytes(PICKLES[kind](marker))
    message = refusal(tmp_path / name)
    if kind == "text" and name == "model":
        assert "not a supported model file" in message, "a pickle in text has nothing to know it by but its name"
    else:
        assert "pickle" in message
        assert "safetensors" in message
    assert not marker.exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.onnx", b"\x08\x0a", "already an ONNX file"),
        ("model.safetensors", b"", "weights but no model"),
        ("weights", (64).to_bytes(8, "little") + json.dumps({"a": 1}).encode(), "weights but no model"),
        ("net.py", b"", "net.py:factory"),
        ("notes.txt", b"hello", "not a supported model file"),
        ("empty", b"", "not a supported model file"),
    ],
)
def test_other_file_is_refused_for_what_it_is(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path / name)
    assert said in message
    assert str(tmp_path / name) in message


def test_broken_archive_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a/b", "c")
    broken = (tmp_path / "x.zip").read_bytes()[:-30]
    (tmp_path / "x").write_bytes(broken + b"PK\x05\x06" + b"\xff" * 18)
    assert "not a supported model file" in refusal(tmp_path / "x")


# --- what names nothing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "reference",
    [
        "./models/net",
        "/models/net",
        "~/models/net",
        "models/net/",
        "one/two/three",
        "net.pt2",
        "",
        " ",
        "..",
        "C:\\net",
    ],
)
def test_path_that_is_not_there_is_said_and_nothing_is_asked_of_the_hub(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    message = refusal(reference)
    assert "hub at" not in message
    assert "HF_HUB_OFFLINE" not in message


@pytest.mark.parametrize("reference", ["~nobody_of_that_name/net", "x" * 5000, "./" + "x" * 5000, "a/\udcff"])
def test_name_that_no_file_can_have_is_an_error_of_ours(reference: str) -> None:
    refusal(reference)


@given(st.text())
@settings(max_examples=200, deadline=None, derandomize=True)
def test_any_text_gives_a_model_or_one_of_our_errors(reference: str) -> None:
    try:
        load_model(reference)
    except ModelExportError as error:
        assert str(error)  # noqa: PT017  any of them will do


@pytest.mark.parametrize("reference", ["a b", "org/na me", "a--b/c", "x" * 200, "nul\x00byte", "-name"])
def test_name_that_no_hub_model_can_have_is_refused(reference: str) -> None:
    assert "package.module:factory" in refusal(reference)
