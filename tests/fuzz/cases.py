"""A folder of untrusted files, made anew for each number: the same number gives the same folder."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import onnx
from google.protobuf.message import Message

from modelexport.graph.digest import graph_hash
from tests.fuzz import nasty
from tests.fuzz.bytes_mutations import mutate_bytes, mutate_fields
from tests.fuzz.model_mutations import mutate_model
from tests.fuzz.seeds import DATA, MODEL, SIDECAR, Seed
from tests.fuzz.sidecar_mutations import mutate_document, mutate_text


@dataclasses.dataclass(frozen=True)
class Workspace:
    """Where cases are laid out: ``inside`` is the untrusted folder, ``outside`` is what no reader may touch."""

    root: Path

    @property
    def inside(self) -> Path:
        return self.root / "inside"

    @property
    def outside(self) -> Path:
        return self.root / "outside"

    @property
    def results(self) -> Path:
        return self.root / "results"

    def tagged(self, seed: Seed) -> Path:
        """A valid file with its hierarchy: the seed itself, or the one it was made of."""
        return self.root / "seed" / seed.base / MODEL

    def make(self, seeds: Sequence[Seed]) -> Workspace:
        """Create the folders, the canaries, and the valid files."""
        for seed in seeds:
            if seed.base == seed.name:
                folder = self.root / "seed" / seed.name
                folder.mkdir(parents=True, exist_ok=True)
                seed.save(folder)
        for folder in (self.inside, self.outside, self.results):
            folder.mkdir(parents=True, exist_ok=True)
        (self.outside / "canary.txt").write_bytes(nasty.CANARY * 3)
        (self.outside / "canary.data").write_bytes(nasty.CANARY * 40)
        return self

    def clear(self) -> None:
        """Empty the untrusted folder and what was written."""
        for folder in (self.inside, self.results):
            for entry in os.scandir(folder):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    Path(entry.path).unlink()

    def outside_is_untouched(self) -> bool:
        """Whether the canaries are as they were, alone, and nothing else has appeared at the top."""
        return (
            {entry.name for entry in os.scandir(self.outside)} == {"canary.txt", "canary.data"}
            and {entry.name for entry in os.scandir(self.root)} == {"inside", "outside", "results", "seed"}
            and (self.outside / "canary.txt").read_bytes() == nasty.CANARY * 3
            and (self.outside / "canary.data").read_bytes() == nasty.CANARY * 40
        )


@dataclasses.dataclass(frozen=True)
class Case:
    """One input.

    Attributes:
        number: Its number.
        path: The model in the untrusted folder.
        seed: The valid file it was made of.
        done: What was done to that.
        size: The bytes in the folder.
    """

    number: int
    path: Path
    seed: Seed
    done: tuple[str, ...]
    size: int


def make_case(number: int, seeds: Sequence[Seed], workspace: Workspace, series: int = 0) -> Case:
    """Lay out the case of a number."""
    draw = Random(f"{series}/{number}")
    seed = draw.choice(seeds)
    model, sidecar, done = seed.model, seed.sidecar, []
    # From 66 on only the sidecar is changed.
    kind = draw.randrange(100 if sidecar is not None else 66)
    if kind < 12:
        model = mutate_bytes(draw, model, draw.choice(seeds).model)
        done.append("bytes")
    elif kind < 24:
        for _ in range(draw.choice((1, 2, 3))):
            model = mutate_fields(draw, model)
        done.append("fields")
    elif kind < 66:
        proto = onnx.ModelProto.FromString(model)
        done += mutate_model(draw, proto)
        model = proto.SerializeToString()
    if sidecar is None and draw.random() < 0.2:
        sidecar = draw.choice(seeds).sidecar
    if sidecar is not None:
        if kind >= 66 or draw.random() < 0.15:
            sidecar, lies = mutate_document(draw, sidecar)
            done += lies
        if draw.random() < 0.06:
            sidecar = mutate_text(draw, sidecar)
            done.append("text")
        if draw.random() < 0.04:
            sidecar = mutate_bytes(draw, sidecar, model)
            done.append("sidecar bytes")
        if draw.random() < 0.75:
            sidecar = _claiming(sidecar, model)
    if draw.random() < 0.05:
        model = _not_utf8(draw, model)
        done.append("not UTF-8")
    path = _lay_out(draw, workspace, model, sidecar, seed)
    # Drawn apart, so that the cases stay what they are.
    done += _add_leftovers(Random(f"{series}/{number}/leftovers"), workspace)
    return Case(number, path, seed, tuple(done), _size(workspace.inside))


def _claiming(sidecar: bytes, model: bytes) -> bytes:
    """The sidecar with the hash of this graph, as an attacker would write it: nobody signs it."""
    with contextlib.suppress(Exception):
        document = json.loads(sidecar)
        document["graph_hash"] = graph_hash(onnx.ModelProto.FromString(model))
        return json.dumps(document).encode()
    return sidecar


def _not_utf8(draw: Random, model: bytes) -> bytes:
    """Some name of the file is text in no encoding; its length stays what it was."""
    names = [name for name in (b"Relu", b"weight", b"main_graph", b"local", b"torch", b"exact") if name in model]
    name = draw.choice(names or [model[:1]])
    return model.replace(name, b"\xff" * len(name), 1)


def _lay_out(draw: Random, workspace: Workspace, model: bytes, sidecar: bytes | None, seed: Seed) -> Path:
    workspace.clear()
    inside, outside = workspace.inside, workspace.outside
    path = inside / MODEL
    path.write_bytes(_with_absolute_path(model, outside))
    if sidecar is not None:
        if draw.random() < 0.01:
            (inside / SIDECAR).symlink_to(outside / "canary.txt")
        else:
            (inside / SIDECAR).write_bytes(sidecar)
    if draw.random() < 0.95:
        (inside / DATA).write_bytes(seed.data or b"\0" * 64)
    if b"link" in model or b"pipe.data" in model or b"hard.data" in model or b"folder.data" in model:
        (inside / "link.data").symlink_to(outside / "canary.data")
        (inside / "linked").symlink_to(outside)
        (inside / "loop.data").symlink_to(inside / "loop.data")
        os.link(outside / "canary.data", inside / "hard.data")
        os.mkfifo(inside / "pipe.data")
        (inside / "folder.data").mkdir()
    return path


def _add_leftovers(draw: Random, workspace: Workspace) -> list[str]:
    """Now and then the sidecar has the name of another model, and a killed export seems to have left its journal."""
    inside, done = workspace.inside, []
    sidecar = inside / SIDECAR
    if sidecar.is_file() and draw.random() < 0.05:
        sidecar.rename(inside / "other_hierarchy.json")
        done.append("renamed sidecar")
    if draw.random() < 0.05:
        done.append("journal")
        folder = inside / f".modelexport-model-{draw.getrandbits(64):016x}"
        (folder / "old").mkdir(parents=True)
        for name in (MODEL, SIDECAR):
            (folder / "old" / name).write_bytes(nasty.CANARY)
        lock = folder / "lock"
        lock.touch()
        info = lock.stat()
        names = [draw.choice((MODEL, SIDECAR, DATA, "../outside/canary.txt", nasty.name(draw))) for _ in range(3)]
        signature = draw.choice((None, [0, 0], [(inside / MODEL).stat().st_size, (inside / MODEL).stat().st_mtime_ns]))
        origin = draw.choice((None, [info.st_ino, info.st_ctime_ns], [1, 1]))
        steps = [{"name": name, "old": signature, "new": draw.choice((None, signature))} for name in names]
        text = json.dumps([MODEL, origin, steps]).encode(errors="replace")
        (folder / "commit.json").write_bytes(text if draw.random() < 0.7 else mutate_bytes(draw, text, b""))
    return done


def _with_absolute_path(model: bytes, outside: Path) -> bytes:
    """`{outside}` in locations becomes the real place; where the file is no model any more, it stays."""
    if b"{outside}" not in model:
        return model
    try:
        proto = onnx.ModelProto.FromString(model)
    except Exception:  # noqa: BLE001  protobuf's own error is not public
        return model
    for entry in _external_data(proto):
        entry.value = entry.value.replace("{outside}", str(outside))
    return proto.SerializeToString()


def _external_data(message: Message) -> Iterator[onnx.StringStringEntryProto]:
    """The external data entries of every tensor in a message, at any depth."""
    waiting = [message]
    while waiting:
        for field, content in waiting.pop().ListFields():
            if field.name == "external_data":
                yield from content
            elif field.message_type is not None:
                waiting.extend([content] if isinstance(content, Message) else content)


def _size(folder: Path) -> int:
    return sum(entry.stat(follow_symlinks=False).st_size for entry in os.scandir(folder))
