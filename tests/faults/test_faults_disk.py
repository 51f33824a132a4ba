"""Disks that are full and folders that go away under the server."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import aiohttp
from drills import drill
from faults_server import FAKE, Client, Server, begun, bodies, serving, whole


async def test_the_disk_is_full(tmp_path: Path) -> None:
    """No file of the server may grow beyond some 100 to 200 KiB."""
    with drill(
        "F14 full", "disk full while a batch and stored responses are written", "batch failed and said so; chat goes on"
    ) as d:
        states, answers = set(), set()
        for random in d.seeds():
            folder = tmp_path / str(d.runs)
            folder.mkdir()
            serve = {"no_files": False, "no_response_store": False, "files_dir": str(folder / "files")}
            serve["response_store"] = str(folder / "responses.db")
            room = random.randrange(96, 224) << 10
            async with serving(fake=FAKE, serve=serve, file_bytes=room) as client:
                asked = bodies(random, 2)
                want = await whole(client, asked)
                batch = await run_batch(client, lines=80)
                states.add(batch["status"])
                assert batch["status"] in ("failed", "completed"), batch
                if batch["status"] == "failed":
                    assert "could not" in batch["errors"]["data"][0]["message"]
                for name in ("output_file_id", "error_file_id"):
                    if batch.get(name):
                        for line in (await content(client, batch[name])).splitlines():
                            assert "custom_id" in json.loads(line), "a file that is cut off"
                for _ in range(15):
                    answers.update(await asyncio.gather(*(respond(client) for _ in range(4))))
                assert answers <= {200, 503}, answers
                assert await whole(client, asked) == want
                assert await client.status("/ready") == 200
        d.note = f"batches {' and '.join(sorted(states))}; responses {sorted(answers)}"


async def test_nobody_can_take_the_logs() -> None:
    with drill("F14 logs", "every write to standard error fails, from the start on", "starts, serves, drains") as d:
        for random in d.seeds():
            async with serving(fake=FAKE, log_to="/dev/full", serve={"log_level": "debug"}, mute=True) as client:
                asked = bodies(random, 6)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 6)
                client.server.engine.kill()
                assert await asyncio.gather(*tasks) == want
                client.server.process.send_signal(signal.SIGTERM)
                assert await asyncio.to_thread(client.server.process.wait, 15) == 0


async def test_folders_that_go_away(tmp_path: Path) -> None:
    with drill(
        "F14 gone", "the folder of files is replaced by a file while the server runs", "chat goes on, the rest says so"
    ) as d:
        for random in d.seeds():
            folder = tmp_path / f"files{d.runs}"
            async with serving(fake=FAKE, serve={"no_files": False, "files_dir": str(folder)}) as client:
                asked = bodies(random, 4)
                want = await whole(client, asked)
                tasks, _ = await begun(client, asked, 4)
                folder.rename(tmp_path / f"elsewhere{d.runs}")
                folder.write_text("not a folder")
                form = aiohttp.FormData()
                form.add_field("purpose", "batch")
                form.add_field("file", b"{}", filename="in.jsonl")
                async with client.session.post(client.server.url + "/v1/files", data=form) as reply:
                    d.note = f"/v1/files answers {reply.status}"
                    assert reply.status == 503
                assert await asyncio.gather(*tasks) == want
                assert await whole(client, asked) == want
                assert await client.status("/ready") == 200


def test_a_store_that_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    places = ["/proc/nowhere/responses.db", "/proc/self/status/responses.db", str(tmp_path), f"{tmp_path}/file/a.db"]
    with drill(
        "F14 start", "the named file of responses cannot be made", "no start, exit 1, one line that names it"
    ) as d:
        for random in d.seeds():
            place = random.choice(places)
            server = Server({"serve": {"no_response_store": False, "response_store": place}})
            try:
                assert server.process.wait(20) == 1
            finally:
                server.kill()
            assert server.said.startswith(f"octavo: --response-store: {place} cannot be used: "), server.said
            assert server.said.count("\n") == 1


async def content(client: Client, id: str) -> str:
    async with client.session.get(f"{client.server.url}/v1/files/{id}/content") as reply:
        return await reply.text()


async def respond(client: Client) -> int:
    body = {"model": "tiny", "input": "hello " * 200, "max_output_tokens": 16}
    async with client.session.post(client.server.url + "/v1/responses", json=body) as reply:
        await reply.read()
        return reply.status


async def run_batch(client: Client, lines: int) -> dict[str, Any]:
    body = {"model": "tiny", "prompt": "hello", "max_tokens": 200, "ignore_eos": True, "logprobs": 5}
    text = "\n".join(
        json.dumps({"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions", "body": body})
        for i in range(lines)
    )
    form = aiohttp.FormData()
    form.add_field("purpose", "batch")
    form.add_field("file", text.encode(), filename="in.jsonl", content_type="application/jsonl")
    async with client.session.post(client.server.url + "/v1/files", data=form) as reply:
        uploaded = await reply.json()
    wanted = {"input_file_id": uploaded["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    async with client.session.post(client.server.url + "/v1/batches", json=wanted) as reply:
        batch: dict[str, Any] = await reply.json()
    async with asyncio.timeout(60):
        while batch["status"] not in ("failed", "completed", "cancelled", "expired"):
            await asyncio.sleep(0.1)
            async with client.session.get(f"{client.server.url}/v1/batches/{batch['id']}") as reply:
                batch = await reply.json()
    return batch
