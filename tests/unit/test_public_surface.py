"""What `import modelexport` gives: exactly the names it promises, documented, and without torch."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import modelexport
from modelexport import errors

PUBLIC = [name for name in modelexport.__all__ if name != "__version__"]


def package_modules() -> list[ModuleType]:
    found = pkgutil.walk_packages(modelexport.__path__, f"{modelexport.__name__}.")
    return [modelexport, *(importlib.import_module(info.name) for info in found if not info.name.endswith("__main__"))]


def exceptions_of_ours() -> dict[str, type[BaseException]]:
    """Every exception class that the package defines, wherever it does."""
    return {
        cls.__name__: cls
        for module in package_modules()
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, BaseException) and cls.__module__.startswith("modelexport")
    }


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert modelexport.__all__ == sorted(set(modelexport.__all__))


def test_all_is_what_a_star_import_gives() -> None:
    names: dict[str, object] = {}
    exec("from modelexport import *", names)
    names.pop("__builtins__")
    assert sorted(names) == modelexport.__all__


def test_all_is_what_dir_shows() -> None:
    assert dir(modelexport) == modelexport.__all__


def test_nothing_else_can_be_imported_but_the_modules() -> None:
    tried = {name for module in package_modules() for name in vars(module) if not name.startswith("_")}
    found = {name for name in tried if hasattr(modelexport, name)}
    modules = {name for name in found if isinstance(getattr(modelexport, name), ModuleType)}
    # What the package itself imports to find the rest.
    assert found - modules - {"Any", "TYPE_CHECKING", "annotations"} == set(PUBLIC)


def test_page_of_the_api_lists_every_public_name() -> None:
    page = Path(__file__).parents[2].joinpath("docs/api.md").read_text(encoding="utf-8")
    assert set(PUBLIC) - set(re.findall(r"\w+", page)) == set()


@pytest.mark.parametrize("name", PUBLIC)
def test_public_name_comes_from_where_it_is_said_to_and_has_a_docstring(name: str) -> None:
    value = getattr(modelexport, name)
    assert inspect.isclass(value) or inspect.isfunction(value)
    assert value.__name__ == name
    assert value.__module__.startswith("modelexport.")
    doc = inspect.getdoc(value)
    assert doc
    assert value.__doc__, "inherited documentation is of another class"
    assert doc.splitlines()[0].endswith((".", ":"))
    if inspect.isclass(value):
        for method_name, method in vars(value).items():
            if not method_name.startswith("_") and (inspect.isfunction(method) or isinstance(method, property)):
                assert inspect.getdoc(method), f"{name}.{method_name}"


def test_every_exception_of_the_package_is_a_modelexporterror() -> None:
    found = exceptions_of_ours()
    del found["_Expired"]  # interrupts a thread like Ctrl-C; becomes a FileFormatError before it reaches the caller
    del found["_OtherOperatorInterrupt"]  # ends a run of the model, which may catch others; caught by its only caller
    assert all(issubclass(cls, errors.ModelExportError) for cls in found.values()), found
    # Those that callers meet are defined in one place, and all of that is public.
    defined = {name for name, cls in found.items() if cls.__module__ == errors.__name__}
    assert {name for name in PUBLIC if name.endswith("Error")} == defined


def test_exception_tree_in_the_documentation_is_the_one_there_is() -> None:
    for name, cls in exceptions_of_ours().items():
        if cls.__module__ != errors.__name__:
            continue
        (drawn,) = (line for line in (errors.__doc__ or "").splitlines() if re.search(rf"(^ +|── ){name}\b", line))
        # The root is drawn four columns in, and each level below it four further.
        assert drawn.index(name) // 4 == len(cls.__mro__) - len(errors.ModelExportError.__mro__) + 1, name


def test_version_is_text_that_a_package_index_takes() -> None:
    assert modelexport.__version__.split(".")[0].isdigit()


def test_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        modelexport.no_such_name  # noqa: B018  the access is the test


@pytest.mark.smoke
def test_importing_the_package_and_reading_files_does_not_import_torch() -> None:
    reading = "load, strip_hierarchy, document_schema, HierarchyDocument, LoadedModel, ModelExportError"
    shown = run_python(
        "import sys, modelexport\n"
        "print('torch' in sys.modules)\n"
        f"from modelexport import {reading}\n"
        "print('torch' in sys.modules)\n"
    )
    assert shown.split() == ["False", "False"]


def test_fx_export_imports_only_the_capture_and_the_packages_that_it_needs(tmp_path: Path) -> None:
    shown = run_python(
        "import sys, warnings, torch, modelexport\n"
        "warnings.simplefilter('ignore')\n"
        f"target = {str(tmp_path / 'model.onnx')!r}\n"
        "linear, inputs = torch.nn.Linear(2, 2), torch.ones(1, 2)\n"
        "result = modelexport.export_model(linear, inputs, target, strategy='fx', check='run')\n"
        "print(result.check.outcome.value)\n"
        "print(*(name for name in sys.modules if name.startswith('modelexport.')))\n"
    )
    outcome, modules = shown.splitlines()[-2:]
    assert outcome == "equal"
    imported = {name.removeprefix("modelexport.") for name in modules.split()}
    assert "capture.fx" in imported
    # Other ways to capture, other commands, and what only a wrong file needs.
    others = "batching|capture.by_value|capture.torchscript|cli|job_results|processes|profiling|sources|viewing"
    assert {name for name in imported if re.match(rf"({others})(\.|$)", name)} == set()
    # The check compares outputs, and its differences are those of the verification report, which can be read again.
    allowed = {"analysis", "analysis.findings", "analysis.report_files", "analysis.verification_report"}
    used = ("difference", "file_check", "model_results", "onnx_run", "probes", "pytorch_run", "rounding")
    allowed |= {f"verification.{name}" for name in used}
    assert {name for name in imported if re.match(r"(analysis|verification\.)", name)} == allowed
