"""The built page: of the sources that are there, with its licences, and a policy that allows only its own code."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
VIEWER = ROOT / "viewer"
TEMPLATE = ROOT / "src/modelexport/viewing/page/template.html"


@pytest.fixture(scope="module")
def template() -> str:
    return TEMPLATE.read_text(encoding="utf-8")


def test_page_was_built_from_these_sources(template: str) -> None:
    names = ["build.mjs", "package.json", "package-lock.json", "tsconfig.json"]
    names += [path.relative_to(VIEWER).as_posix() for path in (VIEWER / "src").rglob("*") if path.is_file()]
    digest = hashlib.sha256()
    for name in sorted(names):
        digest.update(f"{name}\0{(VIEWER / name).read_text(encoding='utf-8')}\0".encode())
    assert f"Sources: sha256:{digest.hexdigest()}" in template, "the page is older than viewer/: run make viewer"


def test_page_names_what_it_contains_with_versions_and_licences(template: str) -> None:
    packages = json.loads((VIEWER / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    bundled = [name for name, package in packages.items() if name and not package.get("dev")]
    assert bundled
    head = template[: template.index("<head>")]
    for name in bundled:
        package = packages[name]
        assert f"{name.removeprefix('node_modules/')} {package['version']} ({package['license']})" in head
    assert head.count("Copyright") >= len(bundled)


def test_policy_allows_only_the_script_and_the_styles_of_the_page(template: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', template)
    assert policy is not None
    directives = dict(directive.strip().split(" ", 1) for directive in policy[1].split(";"))

    def of(element: str) -> str:
        content = re.search(rf"<{element}>(.*?)</{element}>", template, re.DOTALL)
        assert content is not None
        return f"'sha256-{base64.b64encode(hashlib.sha256(content[1].encode()).digest()).decode()}'"

    assert directives == {
        "default-src": "'none'",
        "script-src": of("script"),
        "style-src": of("style"),
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
    }


def test_page_has_each_placeholder_once_and_no_styles_in_attributes(template: str) -> None:
    assert template.count("__MODEL_DATA__") == template.count("__MODEL_TITLE__") == 1
    assert '<script type="application/json" id="model-data">__MODEL_DATA__</script>\n' in template
    markup = re.sub(r"<(script|style)>.*?</\1>|<!--.*?-->", "", template, flags=re.DOTALL)
    assert not re.search(r"\s(style|on\w+)=", markup)
    assert not re.search(r'(src|href)="(?!data:)', markup)


def test_lock_file_names_no_registry() -> None:
    text = (VIEWER / "package-lock.json").read_text(encoding="utf-8")
    assert "resolved" not in text
    assert "http" not in re.sub(r'"(url|funding)": "[^"]*"', "", text)
