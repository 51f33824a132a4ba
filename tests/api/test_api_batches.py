"""Files and batches: bad lines, cancel, restart, limits, and the openai client."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from api_live import Answer, Live, backend, config
from kept import keeping
from msgspec.structs import replace

from octavo.base.errors import ConfigError
from octavo.cli.run_batch import BatchOptions
from octavo.cli.run_batch import run as run_batch
from octavo.serve.batches.offline import run_file
from octavo.serve.keyfile import Key, KeyLimits, digest_of, line_of

URL = "/v1/chat/completions"
RAW = {"Content-Type": "application/octet-stream"}


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Live]:
    with keeping(tmp_path, max_file_bytes=1 << 20) as live:
        yield live
        assert live.quiet()


def line(name: str, text: str = "hello", url: str = URL, **fields: Any) -> str:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 3, **fields}
    return json.dumps({"custom_id": name, "method": "POST", "url": url, "body": body})


def response(name: str) -> str:
    body = {"input": "hi", "max_output_tokens": 2}
    return json.dumps({"custom_id": name, "method": "POST", "url": "/v1/responses", "body": body})


def upload(live: Live, data: bytes, query: str = "?purpose=batch&filename=in.jsonl") -> Answer:
    return live.call("POST", f"/v1/files{query}", data, RAW)


def begin(live: Live, data: bytes, **fields: Any) -> Any:
    id = upload(live, data).json["id"]
    body = {"input_file_id": id, "endpoint": URL, "completion_window": "24h", **fields}
    answer = live.post("/v1/batches", body)
    assert answer.status == 200, answer.body
    return answer.json


def ended(live: Live, id: str) -> Any:
    for _ in range(500):
        body = live.get(f"/v1/batches/{id}").json
        if body["status"] in ("completed", "failed", "expired", "cancelled"):
            return body
        time.sleep(0.01)
    raise AssertionError(body)


def rows(live: Live, id: str | None) -> list[Any]:
    if id is None:
        return []
    return [json.loads(row) for row in live.get(f"/v1/files/{id}/content").body.splitlines()]


def test_bad_lines_do_not_spoil_good_ones(kept: Live) -> None:
    lines = [
        "\ufeff" + line("a"),
        "",
        "{broken",
        line("b", temperature=9),
        line("a"),
        line("c", url="/v1/completions"),
        line("d", stream=True),
        "[" * 100,
        json.dumps({"custom_id": "e", "url": URL}),
        json.dumps({"custom_id": "f", "url": URL, "body": None}),
        line("last"),
    ]
    batch = ended(kept, begin(kept, "\r\n".join(lines).encode())["id"])
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 10, "completed": 2, "failed": 8}
    good, bad = rows(kept, batch["output_file_id"]), rows(kept, batch["error_file_id"])
    assert [row["custom_id"] for row in good] == ["a", "last"]
    assert all(row["response"]["status_code"] == 200 for row in good)
    assert [row["custom_id"] for row in bad] == [None, "b", "a", "c", "d", None, "e", "f"]
    assert bad[1]["response"]["body"]["error"]["param"] == "temperature"
    assert bad[0]["error"]["line"] == 3
    assert bad[2]["error"]["code"] == "duplicate_custom_id"
    assert bad[3]["error"]["code"] == "mismatched_url"
    assert bad[7]["error"]["param"] == "body"


def test_answers_are_those_of_the_endpoint(kept: Live) -> None:
    batch = ended(kept, begin(kept, "\n".join(line(str(n), f"text {n}") for n in range(40)).encode())["id"])
    for number, row in enumerate(rows(kept, batch["output_file_id"])):
        assert row["custom_id"] == str(number)
    same = kept.chat("text 7", max_tokens=3).json["choices"]
    assert rows(kept, batch["output_file_id"])[7]["response"]["body"]["choices"] == same
    assert all(request.priority == 0 for request in kept.engine.requests)  # which fcfs engines ask for


def test_lines_go_behind_all_others(tmp_path: Path) -> None:
    conf = config(files_dir=str(tmp_path))
    scheduler = replace(conf.engine.scheduler, scheduling_policy="priority")
    with Live(replace(conf, engine=replace(conf.engine, scheduler=scheduler)), backend()) as live:
        ended(live, begin(live, line("a").encode())["id"])
        assert live.engine.requests[-1].priority > 10**9
        live.chat(max_tokens=1)
        assert live.engine.requests[-1].priority == 0


def test_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    data = "\n".join(line(str(n), f"text {n}") for n in range(30)).encode()
    with keeping(tmp_path, batch_concurrency=2) as live:
        live.engine.delay_s = 0.02
        id = begin(live, data)["id"]
        while live.get(f"/v1/batches/{id}").json["request_counts"]["completed"] < 4:
            time.sleep(0.01)
        live.stop_jobs()
    with keeping(tmp_path) as live:
        live.resume()
        batch = ended(live, id)
        assert [row["custom_id"] for row in rows(live, batch["output_file_id"])] == [str(n) for n in range(30)]
        assert len(live.engine.requests) <= 26
        assert not list(tmp_path.rglob("*.journal"))


def test_cancel(kept: Live) -> None:
    kept.engine.delay_s = 0.05
    id = begin(kept, "\n".join(line(str(n), max_tokens=40) for n in range(100)).encode())["id"]
    while not kept.engine.open:
        time.sleep(0.01)
    assert kept.post(f"/v1/batches/{id}/cancel", {}).json["status"] in ("cancelling", "cancelled")
    assert ended(kept, id)["status"] == "cancelled"
    assert kept.post(f"/v1/batches/{id}/cancel", {}).json["status"] == "cancelled"


def test_batches_that_cannot_be(kept: Live) -> None:
    empty = ended(kept, begin(kept, b"\n\n")["id"])
    assert empty["status"] == "failed"
    assert empty["errors"]["data"][0]["code"] == "invalid_file"
    id = upload(kept, b"x").json["id"]
    for fields, param in (
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "soon"}, "completion_window"),
        ({"completion_window": "9999d"}, "completion_window"),
        ({"metadata": {"a": []}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 3600}}, "output_expires_after"),
    ):
        body = {"input_file_id": id, "endpoint": URL, "completion_window": "24h", **fields}
        assert kept.post("/v1/batches", body).error["param"].startswith(param)
    other = upload(kept, b"x", "?purpose=user_data").json["id"]
    assert kept.post("/v1/batches", {"input_file_id": other, "endpoint": URL}).error["param"] == "input_file_id"
    assert kept.get("/v1/batches/batch_none").status == 404


def test_files(kept: Live) -> None:
    names = ["../../etc/passwd", "a\x00b.jsonl", "C:\\x\\y.jsonl", "", "é" * 400]
    for name in names:
        form = (
            b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--B\r\nContent-Disposition: form-data; name="file"; filename="' + name.encode() + b'"\r\n\r\n'
            b"data\r\n--B--\r\n"
        )
        answer = kept.call("POST", "/v1/files", form, {"Content-Type": "multipart/form-data; boundary=B"})
        assert answer.status == 200, answer.body
        shown = answer.json["filename"]
        assert shown
        assert "/" not in shown
        assert "\\" not in shown
        assert len(shown) <= 255
        assert kept.get(f"/v1/files/{answer.json['id']}/content").body == b"data"
    listed = kept.get("/v1/files?limit=2&order=asc").json
    assert len(listed["data"]) == 2
    assert listed["has_more"]
    rest = kept.get(f"/v1/files?order=asc&after={listed['last_id']}").json
    assert len(rest["data"]) == 3
    id = rest["data"][0]["id"]
    assert kept.call("DELETE", f"/v1/files/{id}").json["deleted"] is True
    assert kept.get(f"/v1/files/{id}").status == 404
    assert kept.get(f"/v1/files/{id}/content").status == 404
    assert kept.get("/v1/files/..%2f..%2fetc%2fpasswd").status == 404


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"x" * (1 << 21), "application/octet-stream", 413),
        (b"x", "application/json", 415),
        (b"x", "multipart/form-data", 400),
        (b"no form", "multipart/form-data; boundary=B", 400),
        (
            b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--B--\r\n',
            "multipart/form-data; boundary=B",
            400,
        ),
        (
            b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx',
            "multipart/form-data; boundary=B",
            400,
        ),
        (
            b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\n' + b"b" * 5000 + b"\r\n--B--\r\n",
            "multipart/form-data; boundary=B",
            400,
        ),
        (
            b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n' * 2
            + b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--B--\r\n',
            "multipart/form-data; boundary=B",
            400,
        ),
        (
            b"--B\r\nContent-Disposition: form-data\r\n\r\nbatch\r\n"
            b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--B--\r\n',
            "multipart/form-data; boundary=B",
            400,
        ),
        (
            b'--B\r\nContent-Disposition: form-data; name="expires_after[seconds]"\r\n\r\n3600\r\n'
            b'--B\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
            b'--B\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\n--B--\r\n',
            "multipart/form-data; boundary=B",
            400,
        ),
        (
            b'--B\r\nContent-Disposition: form-data; name="p"\r\n\r\nb\r\n' * 40 + b"--B--\r\n",
            "multipart/form-data; boundary=B",
            400,
        ),
    ],
)
def test_bad_uploads(kept: Live, tmp_path: Path, body: bytes, kind: str, status: int) -> None:
    assert kept.call("POST", "/v1/files?purpose=batch", body, {"Content-Type": kind}).status == status
    assert kept.get("/v1/files").json["data"] == []
    assert not list((tmp_path / "files").glob("file-*"))


def test_a_full_folder(tmp_path: Path) -> None:
    with keeping(tmp_path, max_files_bytes=4096) as live:
        assert upload(live, b"x" * 3000).status == 200
        assert upload(live, b"x" * 3000).status == 429


def test_answers_take_room_as_files_do(tmp_path: Path) -> None:
    with keeping(tmp_path, max_files_bytes=8192) as live:
        batch = ended(live, begin(live, "\n".join(line(f"l{index}") for index in range(20)).encode())["id"])
        assert batch["status"] == "failed"
        assert "no room" in batch["errors"]["data"][0]["message"]
        kept = rows(live, batch["output_file_id"])
        assert 0 < len(kept) == batch["request_counts"]["completed"] < 20
        assert live.service.stores.files.writing == 0
        assert len(list((tmp_path / "files").glob("*.journal"))) == 0
        assert live.call("DELETE", f"/v1/files/{batch['output_file_id']}").status == 200
        small = ended(live, begin(live, line("a").encode())["id"])
        assert small["status"] == "completed"


def test_keys_do_not_see_each_other(tmp_path: Path) -> None:
    with keeping(tmp_path, api_key=["one", "two"]) as live:
        one, two = {"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}
        id = live.call("POST", "/v1/files?purpose=batch", line("a").encode(), {**RAW, **one}).json["id"]
        assert live.call("GET", f"/v1/files/{id}", None, two).status == 404
        body = {"input_file_id": id, "endpoint": URL}
        assert live.call("POST", "/v1/batches", body, two).status == 404
        batch = live.call("POST", "/v1/batches", body, one).json["id"]
        assert live.call("GET", f"/v1/batches/{batch}", None, two).status == 404
        assert live.call("GET", "/v1/batches", None, two).json["data"] == []
        assert len(live.call("GET", "/v1/batches", None, one).json["data"]) == 1


def test_a_server_without_files() -> None:
    with Live(config(), backend()) as live:
        assert upload(live, b"x").error["code"] == "files_disabled"
        assert live.get("/v1/batches").status == 404


def test_the_openai_client(kept: Live) -> None:
    client = openai.OpenAI(base_url=f"{kept.url}/v1", api_key="none", max_retries=0)
    data = "\n".join([line("a"), line("b")]).encode()
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    assert file.bytes == len(data)
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    ended(kept, batch.id)
    done = client.batches.retrieve(batch.id)
    assert done.status == "completed"
    assert client.files.content(str(done.output_file_id)).text.count("\n") == 2
    assert [entry.id for entry in client.batches.list()] == [batch.id]
    assert client.files.delete(file.id).deleted


async def test_run_batch_without_a_server(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [line("a"), "{broken", response("r"), line("b")]
    source.write_text("\n".join(lines))

    async def launcher(_: Any) -> Any:
        return backend()

    done = await run_file(config().engine, source, target, concurrency=2, launcher=launcher)
    assert (done.total, done.ok) == (4, 3)
    assert [json.loads(row)["custom_id"] for row in target.read_text().splitlines()] == ["a", None, "r", "b"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


@pytest.mark.parametrize(
    ("source", "target"),
    [("in", "in"), ("in", "./in"), ("in", "link"), ("out.journal", "out"), ("out.part", "out"), ("in", "pipe")],
)
def test_run_batch_leaves_what_is_no_output_alone(tmp_path: Path, source: str, target: str) -> None:
    (tmp_path / source).write_text("requests")
    if target == "link":
        (tmp_path / target).symlink_to(source)
    if target == "pipe":
        os.mkfifo(tmp_path / target)
    options = BatchOptions(input_file=str(tmp_path / source), output_file=f"{tmp_path}/{target}")
    with pytest.raises(ConfigError, match="--output-file"):
        run_batch(options, config().engine)
    assert (tmp_path / source).read_text() == "requests"


def test_run_batch_says_what_is_missing(tmp_path: Path) -> None:
    engine = config().engine
    with pytest.raises(ConfigError, match="-i FILE"):
        run_batch(BatchOptions(), engine)
    with pytest.raises(ConfigError, match="no such file"):
        run_batch(BatchOptions(input_file=str(tmp_path / "no"), output_file="x"), engine)
    (tmp_path / "in").touch()
    with pytest.raises(ConfigError, match="is a folder"):
        run_batch(BatchOptions(input_file=str(tmp_path / "in"), output_file=str(tmp_path)), engine)


def test_a_bug_in_a_batch_is_its_end(kept: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.serve.batches.runner._work", lambda *_: 1 / 0)
    batch = ended(kept, begin(kept, line("a").encode())["id"])
    assert batch["status"] == "failed"
    assert "ZeroDivision" not in json.dumps(batch)


def test_old_batches_are_forgotten(kept: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    data = line("a").encode()
    first, second = (ended(kept, begin(kept, data)["id"])["id"] for _ in range(2))
    monkeypatch.setattr("octavo.serve.store.batches.MAX_ENDED", 1)
    third = ended(kept, begin(kept, data)["id"])["id"]
    listed = [batch["id"] for batch in kept.get("/v1/batches").json["data"]]
    assert listed == [third, second]
    assert kept.get(f"/v1/batches/{first}").status == 404
    monkeypatch.setattr("octavo.serve.store.batches.KEEP_S", -1)
    last = ended(kept, begin(kept, data)["id"])["id"]
    assert [batch["id"] for batch in kept.get("/v1/batches").json["data"]] == [last]


def test_lines_count_against_their_key_and_hold_up_no_other(tmp_path: Path) -> None:
    keys = tmp_path / "keys.txt"
    limits = {"free": KeyLimits(), "slow": KeyLimits(requests=3), "narrow": KeyLimits(concurrent=1)}
    made = [Key(digest_of(name.encode()), name=name, limits=each) for name, each in limits.items()]
    keys.write_text("\n".join(map(line_of, made)))
    with keeping(tmp_path, api_key_file=str(keys), batch_concurrency=2) as live:

        def send(key: str, path: str, body: Any, method: str = "POST", **headers: str) -> Answer:
            return live.call(method, path, body, {"Authorization": f"Bearer {key}", **headers})

        def begun(key: str, count: int) -> str:
            data = "\n".join(line(f"l{i}") for i in range(count)).encode()
            file = send(key, "/v1/files?purpose=batch&filename=in.jsonl", data, **RAW).json["id"]
            body = {"input_file_id": file, "endpoint": URL, "completion_window": "24h"}
            id: str = send(key, "/v1/batches", body).json["id"]
            return id

        def counts(key: str, id: str, completed: int) -> Any:
            for _ in range(1000):
                body = send(key, f"/v1/batches/{id}", None, "GET").json
                if body["request_counts"]["completed"] >= completed:
                    return body
                time.sleep(0.01)
            raise AssertionError(body)

        slow = begun("slow", 6)
        counts("slow", slow, 3)
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        assert send("slow", URL, body).status == 429, "the batch has taken what the key may"
        counts("narrow", begun("narrow", 4), 4)
        counts("free", begun("free", 6), 6)
        assert counts("slow", slow, 3)["request_counts"] == {"total": 6, "completed": 3, "failed": 0}
        assert send("slow", f"/v1/batches/{slow}/cancel", {}).status == 200
        for _ in range(500):
            if send("slow", f"/v1/batches/{slow}", None, "GET").json["status"] == "cancelled":
                break
            time.sleep(0.01)
        else:
            raise AssertionError("it was not cancelled")
        assert live.service.batch_slots._value == 2
