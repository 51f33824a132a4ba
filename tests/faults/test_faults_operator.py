"""What operators do to a server under load: keys and certificates that change, a second server beside it."""

import asyncio
import contextlib
import ssl
import time
from pathlib import Path

import aiohttp
import psutil
import pytest
import trustme
from drills import drill
from faults_server import FAKE, Client, Server, begun, bodies, serving, whole

from octavo.serve.keyfile import GRANTS, Key, digest_of, line_of

SCOPES = frozenset(GRANTS.values())


def write_keys(path: Path, *keys: str) -> None:
    """In place, as an editor does it."""
    lines = [line_of(Key(digest_of(key.encode()), SCOPES, "operator")) for key in keys]
    path.write_text("\n".join(lines) + "\n")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def seconds_until(client: Client, key: str, status: int) -> float:
    begin = time.monotonic()
    while True:
        async with client.session.get(client.server.url + "/v1/models", headers=bearer(key)) as reply:
            if reply.status == status:
                return time.monotonic() - begin
        assert time.monotonic() - begin < 5.0, f"still {reply.status}"
        await asyncio.sleep(0.01)


async def test_keys_are_exchanged_under_load(tmp_path: Path) -> None:
    what = "the key file gets a new key and loses the old one, under 8 streams of the old one"
    with drill("F21 keys", what, "the old key refused within 1 s, its streams whole") as d:
        path = tmp_path / "keys"
        write_keys(path, "key-0")
        async with serving(fake=FAKE, serve={"api_key_file": str(path)}, headers=bearer("key-0")) as client:
            for random in d.seeds(cheap=True):
                old, new = f"key-{d.runs}", f"key-{d.runs + 1}"
                client.session.headers.update(bearer(old))
                asked = bodies(random, 8)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 8)
                write_keys(path, new)
                refused = await seconds_until(client, old, 401)
                assert await seconds_until(client, new, 200) < 1.0
                d.recovered.append(refused)
                assert refused < 1.0
                assert await asyncio.gather(*tasks) == want


class Papers:
    """A certificate of `name` and the authorities that clients may come from, in files."""

    def __init__(self, folder: Path, authority: trustme.CA) -> None:
        self.certificate, self.key, self.trusted = (folder / name for name in ("cert.pem", "key.pem", "ca.pem"))
        self.authority = authority
        issued = authority.issue_cert("localhost", "127.0.0.1")
        self.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        self.key.write_bytes(issued.private_key_pem.bytes())

    def trust(self, *authorities: trustme.CA) -> None:
        self.trusted.write_bytes(b"".join(each.cert_pem.bytes() for each in authorities))

    def context(self, signed_by: trustme.CA) -> ssl.SSLContext:
        """For a client with a certificate of that authority."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        signed_by.issue_cert("client@example").configure_cert(context)
        return context


async def handshake(port: int, context: ssl.SSLContext) -> bool:
    """Whether a fresh connection gets an answer."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        writer.close()
    except (ssl.SSLError, ConnectionError):
        return False
    return b"200 OK" in answer


async def test_an_authority_is_taken_away_under_load(tmp_path: Path) -> None:
    what = "one of two authorities is taken out of --ssl-ca-certs, under 8 streams of its client"
    with drill("F21 TLS", what, "its client gets no new connection within 2 s, its streams whole") as d:
        staying, leaving = trustme.CA(), trustme.CA()
        papers = Papers(tmp_path, trustme.CA())
        papers.trust(staying, leaving)
        files = {"ssl_certfile": papers.certificate, "ssl_keyfile": papers.key, "ssl_ca_certs": papers.trusted}
        contexts = papers.context(staying), papers.context(leaving)
        async with serving(fake=FAKE, serve={k: str(v) for k, v in files.items()}, ssl_context=contexts[1]) as client:
            port = client.server.port
            for random in d.seeds():
                asked = bodies(random, 8)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 8)
                papers.trust(staying)
                begin = time.monotonic()
                while await handshake(port, contexts[1]):
                    assert time.monotonic() - begin < 2.0
                d.recovered.append(time.monotonic() - begin)
                assert await handshake(port, contexts[0])
                assert await asyncio.gather(*tasks) == want
                papers.trust(staying, leaving)
                while not await handshake(port, contexts[1]):
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("shared", ["port", "store", "files"])
async def test_a_second_server(tmp_path: Path, shared: str) -> None:
    what = {"port": "the same port", "store": "the same file of responses", "files": "the same folder of files"}
    promise = "exit 1 with one line that says so; the first unharmed"
    with drill(f"F22 {shared}", f"a second server is started with {what[shared]}", promise) as d:
        serve = {"no_files": False, "files_dir": str(tmp_path / "files"), "no_response_store": False}
        serve["response_store"] = str(tmp_path / "responses.db")
        async with serving(fake=FAKE, serve=serve) as client:
            for random in d.seeds():
                asked = bodies(random, 6)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 6)
                other = dict(serve) if shared != "port" else {}
                if shared == "store":
                    other["files_dir"] = str(tmp_path / "other")
                if shared == "files":
                    other["response_store"] = str(tmp_path / "other.db")
                second = Server({"fake": FAKE, "serve": other}, port=client.server.port if shared == "port" else 0)
                try:
                    with d.timed():
                        assert await asyncio.to_thread(second.process.wait, 30) == 1
                finally:
                    second.kill()
                lines = [line for line in second.said.splitlines() if line]
                assert len(lines) == 1, lines
                assert ("try another --port" if shared == "port" else "in use by another server") in lines[0]
                assert await asyncio.gather(*tasks) == want
            assert await client.status("/ready") == 200


async def test_the_compiler_of_constraints_dies() -> None:
    what = "the process that tries constraints out is killed, or finds no memory, among 8 streams"
    with drill("F7", what, "each constraint is enforced or refused with 400, all streams whole") as d:
        async with serving(fake=FAKE) as client:
            for random in d.seeds():
                asked = bodies(random, 8)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 8)
                fresh = [constrained(f"[a-f]{{{1 + i},{9 + i}}}x{random.randrange(1 << 30)}") for i in range(6)]
                fresh.append(constrained("((a{1,500}b{1,500}){1,500}c{1,500}){1,500}"))
                answers = [asyncio.create_task(status_of(client, body)) for body in fresh]
                for _ in range(3):
                    await asyncio.sleep(random.random() * 0.1)
                    for process in client.server.tree:
                        with contextlib.suppress(psutil.Error):  # one that has ended meanwhile
                            if "octavo.grammar.compile_worker" in process.cmdline():
                                process.kill()
                statuses = await asyncio.gather(*answers)
                assert set(statuses) <= {200, 400}, statuses
                assert await asyncio.gather(*tasks) == want
                with d.timed():
                    assert await status_of(client, constrained(f"[a-z]{{3}}{random.randrange(1 << 30)}")) == 200
            assert await client.metric("octavo:engine_restarts_total") == 0


def constrained(regex: str) -> dict[str, object]:
    return {"model": "tiny", "prompt": "x", "max_tokens": 40, "seed": 1, "structured_outputs": {"regex": regex}}


async def status_of(client: Client, body: dict[str, object]) -> int:
    timeout = aiohttp.ClientTimeout(total=60)
    async with client.session.post(client.server.url + "/v1/completions", json=body, timeout=timeout) as reply:
        await reply.read()
        return reply.status
