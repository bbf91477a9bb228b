"""What `compare` prints and writes: every form, its schema, exit codes, hostile names, bad input."""

from __future__ import annotations

import html.parser
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import jsonschema
import onnx
import pytest
from onnx import helper
from tests.conftest import Exporter
from tests.support.command import Outcome
from tests.support.comparing import by_module, chain, compared, saved, two_branches

from modelexport.analysis.comparison.comparison_report import comparison_schema
from modelexport.analysis.comparison.model_comparison import compare_models
from modelexport.errors import InputError


@pytest.mark.xdist_group("bert")
def test_json_fits_its_published_schema_and_exit_code_says_same_or_not(
    exported: Exporter, command: Callable[..., Outcome]
) -> None:
    path, other = exported("bert").path, exported("bert", optimize=False).path
    same, different = (command("compare", path, each, "--format", "json") for each in (path, other))
    assert (same.code, different.code) == (0, 1)
    published = json.loads(command("schema", "compare").stdout)
    assert published == json.loads(json.dumps(comparison_schema()))
    for outcome in (same, different):
        jsonschema.validate(json.loads(outcome.stdout), published)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(same.stdout), "same": "yes"}, published)
    content = json.loads(different.stdout)
    assert len(content["changes"]) == sum(content["nodes"][kind] for kind in ("added", "removed", "changed", "moved"))


@pytest.mark.xdist_group("bert")
def test_terminal_shows_the_modules_and_how_many_more_there_are(
    exported: Exporter, command: Callable[..., Outcome]
) -> None:
    path, other = exported("bert").path, exported("bert", optimize=False).path
    found = compare_models(path, other)
    outcome = command("compare", path, other, "--limit", "3")
    assert outcome.code == 1
    assert "different: topology" in outcome.stdout
    assert f"{found.nodes.same:,} the same" in outcome.stdout
    assert f"… and {len(by_module(found)) - 3} more" in outcome.stdout
    assert f"… and {len(found.changes) - 3} more" in outcome.stdout
    assert re.search(r"^ +embeddings +BertEmbeddings +4 +26 ", outcome.stdout, re.MULTILINE)
    assert "the same" in command("compare", path, path).stdout.splitlines()[3]


class Page(html.parser.HTMLParser):
    """Collects the elements and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


HOSTILE = "\x1b]0;owned\x07\x9b31m<img src=x onerror=alert(1)>|`[a](http://e.vil)`@you</table><script>x</script>\n# h"


def hostile(*operations: str) -> onnx.ModelProto:
    model = chain(*operations)
    last = model.graph.node[-1]
    last.op_type, last.domain = HOSTILE, HOSTILE
    last.output[0] = model.graph.output[0].name = HOSTILE
    model.producer_name = HOSTILE
    model.opset_import.append(helper.make_opsetid(HOSTILE, 1))
    model.metadata_props.add(key=HOSTILE, value=HOSTILE)
    return model


def test_hostile_names_are_harmless_in_every_form(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    before, after = saved(chain("Relu"), tmp_path / "a.onnx"), saved(hostile("Relu", "Neg"), tmp_path / "b.onnx")
    shown = command("compare", before, after).stdout
    assert command("compare", before, after, "-o", tmp_path / "r.html").stdout == ""
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", shown)
    assert "onerror" in shown

    page = Page((tmp_path / "r.html").read_text())
    assert "onerror=alert(1)" in page.text
    tags = Counter(tag for tag, _ in page.elements)
    assert not tags.keys() & {"script", "img", "a", "link", "iframe"}
    policy = next(attrs["content"] for tag, attrs in page.elements if attrs.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert not [attrs for _, attrs in page.elements if any(name.startswith("on") for name in attrs)]

    marked = command("compare", before, after, "--format", "markdown").stdout
    assert "<" not in marked
    assert "http://" not in marked
    assert not re.search(r"(?<!\\)[`\[\]]", marked)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", marked)
    # Headings are ours alone, and all rows of a table have as many cells as its head.
    assert all(line.startswith(("# a", "## ")) for line in marked.splitlines() if line.startswith("#"))
    rows = [len(re.findall(r"(?<!\\)\|", line)) for line in marked.splitlines() if line.startswith("|")]
    assert set(rows) <= {4, 5, 6, 14}

    content = command("compare", before, after, "--format", "json").stdout
    assert content.isascii()
    assert "\x1b" not in content
    assert json.loads(content)["metadata"][0]["after"] == HOSTILE


def test_report_form_follows_its_ending(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    before, after = saved(chain("Relu", "Neg"), tmp_path / "a.onnx"), saved(chain("Relu", "Abs"), tmp_path / "b.onnx")
    for name in ("r.json", "r.md", "r.html"):
        outcome = command("compare", before, after, "-o", tmp_path / name)
        assert outcome.code == 1
        assert f"wrote {tmp_path / name}" in outcome.stderr
    assert json.loads((tmp_path / "r.json").read_text())["nodes"]["changed"] == 1
    assert "| changed | (root) | Neg v1 | Abs v1 | Neg → Abs |" in (tmp_path / "r.md").read_text().replace("\\", "")
    assert "<td>Neg → Abs</td>" in (tmp_path / "r.html").read_text()


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    before = saved(chain("Relu"), tmp_path / "a.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    report = tmp_path / "r.html"
    for arguments, words in (
        ((before, tmp_path / "none.onnx", "-o", report), "is not a file"),
        ((before, tmp_path / "broken.onnx", "-o", report), "cannot be read as an ONNX model"),
        ((before, before, "-o", tmp_path / "r.pdf"), "unknown file extension"),
    ):
        outcome = command("compare", *arguments)
        assert outcome.code == 2
        assert words in outcome.stderr
        assert "Traceback" not in outcome.stderr
    assert not report.exists()
    with pytest.raises(InputError):
        compare_models(tmp_path / "none.onnx", before)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    path = saved(chain("Relu"), tmp_path / "a.onnx")
    script = f"""
import sys
from modelexport.cli.main import run
sys.argv = ["modelexport", "compare", {str(path)!r}, {str(path)!r}]
try:
    run()
except SystemExit as ended:
    assert not ended.code
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=120)


def test_help_shows_examples(command: Callable[..., Outcome]) -> None:
    assert "modelexport compare " in command("compare", "--help").stdout.partition("Example")[2]


def test_topology_differs_if_an_output_has_another_producer(tmp_path: Path, command: Callable[..., Outcome]) -> None:
    before, after = two_branches(), two_branches()
    before.graph.output[0].name, after.graph.output[0].name = "a", "b"
    found = compared(tmp_path, before, after)
    assert found.nodes.same == 3
    assert "topology" in found.differences
    outcome = command("compare", tmp_path / "before.onnx", tmp_path / "after.onnx")
    assert "first difference: an output of the model has a different producer" in outcome.stdout
