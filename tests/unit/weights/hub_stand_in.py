"""A local HTTP server that speaks the few hub endpoints that huggingface_hub needs."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class StandIn:
    """Repositories by name, and a record of what was asked.

    `break_after` cuts the next download short after so many bytes, once an entry; `ranges` False ignores ranges.
    """

    def __init__(self) -> None:
        self.repos: dict[str, dict[str, bytes]] = {}
        self.commit = "0123456789abcdef0123456789abcdef01234567"
        self.refs = {"main", self.commit}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.break_after: list[int] = []
        self.ranges = True
        self.status: int | None = None
        self.files_at: str | None = None  # another host that downloads are sent on to
        self.url = ""
        self.sent = 0  # bytes of files


@contextmanager
def hub_stand_in() -> Iterator[StandIn]:
    hub = StandIn()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def do_HEAD(self) -> None:
            self.serve(body=False)

        def do_GET(self) -> None:
            self.serve(body=True)

        def serve(self, body: bool) -> None:
            hub.requests.append((self.command, self.path, dict(self.headers)))
            path = self.path.split("?")[0]
            if hub.status is not None:
                return self.reply(hub.status, b"{}", body)
            if path.startswith("/api/models/"):
                return self.info(path.removeprefix("/api/models/"), body)
            repo, _, rest = path[1:].partition("/resolve/")
            revision, _, name = rest.partition("/")
            if repo not in hub.repos or revision not in hub.refs or name not in hub.repos[repo]:
                return self.reply(404, b"", body, {"X-Error-Code": "EntryNotFound"})
            if hub.files_at:
                data = hub.repos[repo][name]
                headers = {"Location": hub.files_at + path, "X-Repo-Commit": hub.commit}
                headers |= {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{hashlib.sha256(data).hexdigest()}"'}
                return self.reply(302, b"", body, headers)
            return self.file(hub.repos[repo][name], body)

        def info(self, path: str, body: bool) -> None:
            kind = "/tree/" if "/tree/" in path else "/revision/"
            repo, _, revision = path.partition(kind)
            if repo not in hub.repos:
                return self.reply(404, b"{}", body, {"X-Error-Code": "RepoNotFound"})
            if revision and revision not in hub.refs:
                return self.reply(404, b"{}", body, {"X-Error-Code": "RevisionNotFound"})
            if kind == "/tree/":
                tree = [
                    {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}
                    for name, data in hub.repos[repo].items()
                ]
                return self.reply(200, json.dumps(tree).encode(), body, {"Content-Type": "application/json"})
            files = [{"rfilename": name} for name in hub.repos[repo]]
            data = {"id": repo, "modelId": repo, "sha": hub.commit, "siblings": files, "private": False, "tags": []}
            return self.reply(200, json.dumps(data).encode(), body, {"Content-Type": "application/json"})

        def file(self, data: bytes, body: bool) -> None:
            headers = {"ETag": f'"{hashlib.sha256(data).hexdigest()}"', "X-Repo-Commit": hub.commit}
            start, end = 0, len(data)
            asked = self.headers.get("Range")
            if asked and hub.ranges:
                first, _, last = asked.removeprefix("bytes=").partition("-")
                start, end = int(first), min(end, int(last or end) + 1)
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            status = 206 if "Content-Range" in headers else 200
            piece = data[start:end]
            hub.sent += len(piece) if body else 0
            if body and hub.break_after:
                self.reply(status, piece, body, headers, stop=hub.break_after.pop(0))
                self.close_connection = True
                return None
            return self.reply(status, piece, body, headers)

        def reply(
            self, status: int, data: bytes, body: bool, headers: dict[str, str] | None = None, stop: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in (headers or {}).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if body:
                self.wfile.write(data[:stop])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
