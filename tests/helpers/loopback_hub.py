"""A Hub on the loopback interface: the endpoints that the real client calls, kept in memory, with faults on demand."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from urllib.parse import unquote, urlparse

import pytest


TOKEN = "hf_" + "loopback" * 4


@dataclass
class Repo:
    private: bool
    branches: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"main": {}})
    commits: list[str] = field(default_factory=list)  # their messages


@dataclass
class Fault:
    """What the next `times` requests whose method and path match get in place of an answer."""

    pattern: str
    status: int | None  # None drops the connection
    times: int = 1_000_000
    headers: dict[str, str] = field(default_factory=dict)


class LoopbackHub:
    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}  # "models/me/name"
        self.objects: dict[str, bytes] = {}  # large files by their SHA-256
        self.faults: list[Fault] = []
        self.requests: list[str] = []
        self.waits: list[float] = []  # that the client took between attempts
        self.url = ""

    def fail(self, pattern: str, status: int | None, times: int = 1_000_000, **headers: str) -> None:
        self.faults.append(Fault(pattern, status, times, {name.replace("_", "-"): v for name, v in headers.items()}))

    def files(self, repo_id: str, kind: str = "models", branch: str = "main") -> dict[str, bytes]:
        return self.repos[f"{kind}/{repo_id}"].branches[branch]

    @contextmanager
    def running(self) -> Iterator["LoopbackHub"]:
        handler = type("Handler", (_Handler,), {"hub": self})
        with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            self.url = f"http://127.0.0.1:{server.server_port}"
            Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
            try:
                yield self
            finally:
                server.shutdown()

    def stand_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Has the client in this process take it for the Hub; waits between attempts are noted, not taken."""
        from huggingface_hub import close_session, constants
        from huggingface_hub.utils import _http

        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "ENDPOINT", self.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", self.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(_http, "time", SimpleNamespace(**{**vars(_http.time), "sleep": self.waits.append}))
        close_session()


class _Handler(BaseHTTPRequestHandler):
    hub: LoopbackHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *args) -> None:
        pass

    def answer(self) -> None:
        path = unquote(urlparse(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        fault = next((fault for fault in self.hub.faults if re.search(fault.pattern, f"{self.command} {path}")), None)
        length = int(self.headers.get("Content-Length", 0))
        if fault:
            fault.times -= 1
            if not fault.times:
                self.hub.faults.remove(fault)
            if fault.status is None:  # in the middle of what is sent
                self.rfile.read(length // 2)
                self.close_connection = True
                self.connection.close()
                return
            self.rfile.read(length)
            return self.send(fault.status, {"error": "as asked for"}, fault.headers)
        body = self.rfile.read(length)
        signed = self.headers.get("Authorization") == f"Bearer {TOKEN}"
        if path.startswith(("/api/", "/verify")) and not signed and path != "/api/agent-harnesses":
            return self.send(401, {"error": "Invalid username or password."})
        for pattern, method in _ROUTES:
            match = re.fullmatch(pattern, f"{self.command} {path}")
            if match:
                return method(self, body, *match.groups())
        self.send(404, {"error": f"no such endpoint: {self.command} {path}"})

    do_GET = do_POST = do_PUT = do_HEAD = answer

    def send(self, status: int, content: dict | list | bytes = b"", headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def repo(self, kind: str, repo_id: str) -> Repo | None:
        repo = self.hub.repos.get(f"{kind}/{repo_id}")
        if repo is None:
            self.send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        return repo

    def agents(self, body: bytes) -> None:
        self.send(200, {})

    def create(self, body: bytes) -> None:
        asked = json.loads(body)
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        kind = f"{asked.get('type') or 'model'}s"
        url = f"{self.hub.url}/{'' if kind == 'models' else kind + '/'}{name}"
        known = f"{kind}/{name}" in self.hub.repos
        if not known:
            self.hub.repos[f"{kind}/{name}"] = Repo(asked.get("visibility") == "private")
        self.send(409 if known else 200, {"url": url})

    def branch(self, body: bytes, kind: str, repo_id: str, branch: str) -> None:
        if repo := self.repo(kind, repo_id):
            known = branch in repo.branches
            repo.branches.setdefault(branch, dict(repo.branches["main"]))
            self.send(409 if known else 200, {})

    def validate(self, body: bytes) -> None:
        self.send(200, {"errors": [], "warnings": []})

    def preupload(self, body: bytes, kind: str, repo_id: str, branch: str) -> None:
        if repo := self.repo(kind, repo_id):
            files = [
                {
                    "path": file["path"],
                    "uploadMode": "lfs" if file["path"].endswith((".safetensors", ".parquet")) else "regular",
                    "shouldIgnore": False,
                    "oid": _oid(file["path"], repo.branches[branch]),
                }
                for file in json.loads(body)["files"]
            ]
            self.send(200, {"files": files})

    def batch(self, body: bytes) -> None:
        objects = []
        for wanted in json.loads(body)["objects"]:
            oid = wanted["oid"]
            links = {"upload": {"href": f"{self.hub.url}/lfs/{oid}"}, "verify": {"href": f"{self.hub.url}/verify"}}
            objects.append(wanted if oid in self.hub.objects else {**wanted, "actions": links})
        self.send(200, {"transfer": "basic", "objects": objects})

    def put(self, body: bytes, oid: str) -> None:
        whole = hashlib.sha256(body).hexdigest() == oid
        if whole:
            self.hub.objects[oid] = body
        self.send(200 if whole else 400)

    def verify(self, body: bytes) -> None:
        asked = json.loads(body)
        self.send(200 if len(self.hub.objects.get(asked["oid"], b"")) == asked["size"] else 404, {})

    def commit(self, body: bytes, kind: str, repo_id: str, branch: str) -> None:
        if not (repo := self.repo(kind, repo_id)):
            return
        files = dict(repo.branches[branch])
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                repo.commits.append(value["summary"])
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        repo.branches[branch] = files
        url = f"{self.hub.url}/{repo_id}/commit/{_sha(repo)}"
        self.send(200, {"commitUrl": url, "commitOid": _sha(repo), "success": True})

    def info(self, body: bytes, kind: str, repo_id: str, branch: str | None = None) -> None:
        if repo := self.repo(kind, repo_id):
            names = sorted(repo.branches.get(branch or "main", repo.branches["main"]))
            self.send(
                200,
                {
                    "id": repo_id,
                    "private": repo.private,
                    "sha": _sha(repo),
                    "siblings": [{"rfilename": name} for name in names],
                },
            )

    def tree(self, body: bytes, kind: str, repo_id: str, branch: str) -> None:
        if repo := self.repo(kind, repo_id):
            files = repo.branches.get(branch, repo.branches["main"])
            self.send(
                200,
                [
                    {"type": "file", "path": name, "size": len(content), "oid": _oid(name, files)}
                    for name, content in files.items()
                ],
            )

    def resolve(self, body: bytes, kind: str | None, repo_id: str, branch: str, name: str) -> None:
        if repo := self.repo(kind or "models", repo_id):
            files = repo.branches.get(branch, repo.branches["main"])
            if name not in files:
                return self.send(404, {}, {"X-Error-Code": "EntryNotFound"})
            etag = f'"{hashlib.sha256(files[name]).hexdigest()}"'
            self.send(200, files[name], {"ETag": etag, "X-Repo-Commit": _sha(repo)})


def _sha(repo: Repo) -> str:
    return hashlib.sha1(f"{id(repo)} {len(repo.commits)}".encode()).hexdigest()


def _oid(name: str, files: dict[str, bytes]) -> str | None:
    """As git names a file's content; for large files the SHA-256."""
    if name not in files:
        return None
    if name.endswith((".safetensors", ".parquet")):
        return hashlib.sha256(files[name]).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(files[name]) + files[name]).hexdigest()


_REPO = r"/api/(models|datasets)/([^/]+/[^/]+)"
_ROUTES = [
    (r"GET /api/agent-harnesses", _Handler.agents),
    (r"POST /api/repos/create", _Handler.create),
    (r"POST /api/validate-yaml", _Handler.validate),
    (rf"POST {_REPO}/branch/(.+)", _Handler.branch),
    (rf"POST {_REPO}/preupload/(.+)", _Handler.preupload),
    (rf"POST {_REPO}/commit/(.+)", _Handler.commit),
    (r"POST /.+\.git/info/lfs/objects/batch", _Handler.batch),
    (r"PUT /lfs/(\w+)", _Handler.put),
    (r"POST /verify", _Handler.verify),
    (rf"GET {_REPO}/tree/([^/]+)", _Handler.tree),
    (rf"GET {_REPO}", _Handler.info),
    (rf"GET {_REPO}/revision/(.+)", _Handler.info),
    (r"(?:GET|HEAD) /(?:(datasets)/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", _Handler.resolve),
]
