"""Models by hub id, with a hub on this machine: what is asked of it, what is downloaded, and what each failure says."""

from __future__ import annotations

import dataclasses
import json
import socket
from pathlib import Path

import pytest
from tests.support import tiny_models
from tests.support.command import Outcome
from tests.support.commands_in_process import run_commands
from tests.support.fake_hub import FakeHub, serve

pytest.importorskip("diffusers")
pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("hub")]

# Each model is asked for under an id of its own, so that it is known who asked for what.
ASKED: dict[str, tuple[str, ...]] = {
    "wrong": ("inspect", "someone/wrong"),
    "wrong without organization": ("inspect", "wrong-too"),
    "gated": ("inspect", "someone/gated"),
    "revision": ("inspect", "someone/versions", "--revision", "v17"),
    "pickle": ("inspect", "someone/pickle"),
    "empty": ("inspect", "someone/empty"),
    "code": ("inspect", "someone/code"),
    "corrupt": ("inspect", "someone/corrupt"),
    "failing": ("inspect", "someone/failing"),
    "random": ("inspect", "someone/random", "--random-weights", "--format", "json"),
    "good": ("inspect", "someone/good", "--format", "json"),
    "component": ("inspect", "diffusers:someone/pipeline#unet", "--format", "json"),
    "random component": ("inspect", "diffusers:someone/pipeline2#unet", "--random-weights", "--format", "json"),
    "no component": ("inspect", "diffusers:someone/pipeline#vae"),
    "good again": ("inspect", "someone/good", "--revision", "main", "--format", "json"),
}


@dataclasses.dataclass(frozen=True)
class Session:
    hub: FakeHub
    home: Path
    marker: Path
    outcomes: dict[str, Outcome]

    def requests_about(self, name: str) -> list[str]:
        return [request for request in self.hub.asked if name in request]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("hub")
    marker, home = folder / "marker", folder / "home"
    bert = tiny_models.save_bert(folder / "bert", tokenizer=True)
    models = dict.fromkeys(("gated", "versions", "failing", "random", "good"), bert)
    models["pickle"] = tiny_models.with_pickle_only(bert, folder / "pickle", marker)
    models["empty"] = tiny_models.without_weights(bert, folder / "empty")
    models["code"] = tiny_models.with_own_code(folder / "code", marker)
    models["corrupt"] = tiny_models.without_weights(bert, folder / "corrupt")
    (models["corrupt"] / "model.safetensors").write_bytes(b"\xff" * 64)
    models["pipeline"] = models["pipeline2"] = tiny_models.save_pipeline(folder / "pipeline")
    # In another precision, and as a pickle: neither is asked for.
    for variant in ("diffusion_pytorch_model.fp16.safetensors", "diffusion_pytorch_model.bin"):
        (folder / "pipeline" / "unet" / variant).write_bytes(b"not asked for")
    hub = FakeHub(
        {f"someone/{name}": model for name, model in models.items()},
        gated=frozenset({"someone/gated"}),
        failing=frozenset({"someone/failing"}),
    )
    with serve(hub):
        outcomes = run_commands(
            list(ASKED.values()), HF_HUB_OFFLINE="0", HF_ENDPOINT=hub.address, HF_HOME=str(home), HF_TOKEN=""
        )
    return Session(hub, home, marker, dict(zip(ASKED, outcomes, strict=True)))


FAILURES = {
    "wrong": "someone/wrong: the HuggingFace hub has no such model, or it is private",
    "wrong without organization": "package.module:factory",
    "gated": "someone/gated: it is gated: request access on https://huggingface.co/someone/gated",
    "revision": "someone/versions: it has no revision 'v17'",
    "pickle": "someone/pickle has pickled weights only (pytorch_model.bin)",
    "empty": "someone/empty has no weights",
    "code": "someone/code needs Python code from its repository (modeling_own.OwnConfig, modeling_own.OwnModel)",
    "corrupt": "someone/corrupt: ",
    "failing": "the HuggingFace hub answered 503",
    "no component": "its models are diffusers:someone/pipeline#text_encoder, diffusers:someone/pipeline#unet",
}


@pytest.mark.parametrize("kind", FAILURES)
def test_failure_is_one_line_of_its_own(session: Session, kind: str) -> None:
    outcome = session.outcomes[kind]
    assert (outcome.code, outcome.stdout) == (2, "")
    assert outcome.stderr.count("\n") == 1
    assert FAILURES[kind] in outcome.error
    assert not session.marker.exists()


def test_corrupt_weights_are_called_so(session: Session) -> None:
    assert "not a complete safetensors file" in session.outcomes["corrupt"].error


@pytest.mark.parametrize(
    ("name", "downloaded"),
    [
        ("wrong", []),
        ("gated", []),
        ("versions", []),
        ("pickle", ["config.json"]),
        ("empty", ["config.json"]),
        ("code", ["config.json"]),
        ("random", ["config.json"]),
        ("corrupt", ["config.json", "model.safetensors"]),
        ("good", ["config.json", "model.safetensors"]),
        ("pipeline", ["unet/config.json", "unet/diffusion_pytorch_model.safetensors"]),
        ("pipeline2", ["unet/config.json"]),
    ],
)
def test_no_more_is_downloaded_than_was_asked_for(session: Session, name: str, downloaded: list[str]) -> None:
    prefix = f"someone/{name}/"
    fetched = [file for file in session.hub.downloads() if file.startswith(prefix)]
    assert fetched == [f"{prefix}{file}" for file in downloaded]


def test_hub_is_asked_for_nothing_else(session: Session) -> None:
    """No conversions of weights, no telemetry, no other places."""
    ours = ("/api/models/someone/", "/someone/", "/api/models/wrong-too")
    assert [request for request in session.hub.asked if not request.partition(" ")[2].startswith(ours)] == []
    assert {request.partition(" ")[0] for request in session.hub.asked} <= {"GET", "HEAD"}


def test_component_of_a_pipeline_on_the_hub_is_loaded(session: Session) -> None:
    for kind in ("component", "random component"):
        assert session.outcomes[kind].stderr == ""
        assert json.loads(session.outcomes[kind].stdout)["characteristics"]["model_type"] == "UNet2DModel"


def test_model_of_the_hub_is_loaded(session: Session) -> None:
    for kind in ("random", "good", "good again"):
        found = json.loads(session.outcomes[kind].stdout)
        assert found["characteristics"]["model_type"] == "BertModel"
        assert session.outcomes[kind].stderr == ""


@pytest.fixture(scope="module")
def unreachable(session: Session) -> dict[str, Outcome]:
    """The same cache, and no hub."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{taken.getsockname()[1]}"
    asked = {kind: ASKED[kind] for kind in ("good", "wrong", "random")}
    asked["no weights"] = ("inspect", "someone/random")
    environment = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": closed, "HF_HOME": str(session.home)}
    return dict(zip(asked, run_commands(list(asked.values()), **environment), strict=True))


def test_cache_is_used_where_the_hub_cannot_be_reached(unreachable: dict[str, Outcome]) -> None:
    for kind in ("good", "random"):
        assert json.loads(unreachable[kind].stdout)["characteristics"]["model_type"] == "BertModel"
        assert unreachable[kind].stderr == ""


def test_unreachable_hub_is_one_line_that_names_it(unreachable: dict[str, Outcome]) -> None:
    wrong, weights = unreachable["wrong"], unreachable["no weights"]
    assert wrong.code == weights.code == 2
    assert "someone/wrong is not in the cache" in wrong.error
    assert "the cache has no weights for it" in weights.error
    for outcome in (wrong, weights):
        assert "the HuggingFace hub at http://127.0.0.1:" in outcome.error
        assert "cannot be reached" in outcome.error
        assert outcome.stderr.count("\n") == 1
