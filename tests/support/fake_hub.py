"""A HuggingFace hub on 127.0.0.1: its answers as the real one gives them, and a record of what was asked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.tiny_models import COMMIT


@dataclasses.dataclass
class FakeHub:
    """Models by id, each a folder; those that are gated show their files and give none."""

    models: dict[str, Path]
    gated: frozenset[str] = frozenset()
    failing: frozenset[str] = frozenset()
    asked: list[str] = dataclasses.field(default_factory=list)
    address: str = ""

    def downloads(self) -> list[str]:
        """The files that were fetched, each as id/name."""
        return [
            re.sub(r"/resolve/[^/]+", "", path).lstrip("/")
            for kind, path in map(_split, self.asked)
            if kind == "GET" and "/resolve/" in path
        ]

    def answer(self, method: str, path: str) -> tuple[int, dict[str, str], bytes]:
        self.asked.append(f"{method} {path}")
        kind, name, rest = _parse(path)
        if name in self.failing:
            return 503, {}, b""
        if name not in self.models:
            return 401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Invalid username or password."}, b""
        if rest and rest[0] not in (COMMIT, "main"):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        folder = self.models[name]
        files = sorted(file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file())
        if kind == "info":
            return 200, {"Content-Type": "application/json"}, json.dumps(_info(name, files)).encode()
        if name in self.gated:
            return 403, {"X-Error-Code": "GatedRepo", "X-Error-Message": f"Access to model {name} is restricted."}, b""
        if rest[1] not in files:
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT}, b""
        content = (folder / rest[1]).read_bytes()
        return 200, {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha256(content).hexdigest()}"'}, content


def _split(request: str) -> tuple[str, str]:
    method, _, path = request.partition(" ")
    return method, path


def _parse(path: str) -> tuple[str, str, list[str]]:
    path = path.partition("?")[0]
    if path.startswith("/api/models/"):
        name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
        return "info", name, [revision] if revision else []
    name, _, rest = path.lstrip("/").partition("/resolve/")
    return "file", name, rest.split("/", 1)


def _info(name: str, files: list[str]) -> dict[str, Any]:
    return {"id": name, "sha": COMMIT, "siblings": [{"rfilename": file} for file in files], "tags": []}


@contextmanager
def serve(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub at an address of its own, for as long as the block runs."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer("HEAD")

        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer("POST")

        def _answer(self, method: str) -> None:
            status, headers, content = hub.answer(method, self.path)
            self.send_response(status)
            for key, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(key, value)
            self.end_headers()
            if method != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
