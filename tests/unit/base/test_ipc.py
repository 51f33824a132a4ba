import asyncio
import os
import pathlib
import pickle
import shutil
import socket
import stat
import tempfile

import msgspec
import pytest
import zmq
import zmq.asyncio

from octavo.base import ipc
from octavo.base.wire import Abort, Control, EngineInput, EngineRequest, Sampling, Shutdown


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def folder():
    folder = ipc.RuntimeDir()
    yield folder
    folder.remove()


def request(tokens):
    return EngineRequest(id="a", tokens=tokens, sampling=Sampling(seed=1 << 63, max_tokens=4))


def test_runtime_dir_is_private_and_goes(folder):
    assert stat.S_IMODE(os.stat(folder.path).st_mode) == 0o700
    assert len(folder.address("x" * 15)) < 113
    folder.remove()
    assert not folder.path.exists()


def test_folders_of_dead_processes_go_and_others_stay(monkeypatch):
    base = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    alive = ipc.RuntimeDir()
    dead = ipc.RuntimeDir()
    os.close(dead._lock)  # what the kernel does when a process ends
    dead._lock = -1
    (base / "octavo-strange").mkdir()
    third = ipc.RuntimeDir()
    assert alive.path.exists()
    assert not dead.path.exists()
    assert (base / "octavo-strange").exists()
    alive.remove()
    third.remove()
    shutil.rmtree(base)


def test_a_folder_that_is_just_being_made_is_not_swept_away(monkeypatch):
    base = pathlib.Path(tempfile.mkdtemp(dir="/tmp"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    lock = ipc.fcntl.flock

    def lock_late(file, how):
        monkeypatch.setattr(ipc.fcntl, "flock", lock)
        ipc._sweep(base)
        lock(file, how)

    monkeypatch.setattr(ipc.fcntl, "flock", lock_late)
    folder = ipc.RuntimeDir()
    assert folder.path.exists()
    shutil.rmtree(base)


def test_runtime_dir_under_a_path_too_long_for_a_socket(monkeypatch, tmp_path):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    folder = ipc.RuntimeDir()
    assert not str(folder.path).startswith(str(deep))
    folder.remove()


def test_each_kind_of_message_arrives_as_it_left(context, folder):
    key = ipc.new_key()
    receiver = ipc.Receiver(context, folder.address("in"), key, EngineInput)
    sender = ipc.Sender(context, folder.address("in"), key)
    messages = [request([1, 2, 3]), Abort(["a"]), Control(7, "ping", {"x": None, "y": 1.5}), Shutdown()]
    for message in messages:
        assert sender.send(message)
    assert [receiver.receive(5) for _ in messages] == messages
    assert receiver.receive(0) is None
    assert receiver.dropped == 0
    sender.close()
    receiver.close()


class _Canary:
    fired = False

    def __reduce__(self):
        return (setattr, (_Canary, "fired", True))


def garbage(key):
    good = msgspec.msgpack.encode(Abort(["a"]))
    yield [b""]
    yield [b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"]
    yield [os.urandom(2000)]
    yield [pickle.dumps(_Canary())]
    yield [key + pickle.dumps(_Canary())]
    yield [key]
    yield [key, good]
    yield [key + good, b""]
    yield [key + good[:-1]]
    yield [key + good + b"\x00"]
    yield [key[:-1] + b"?" + good]
    yield [bytes(len(key)) + good]
    yield [key + msgspec.msgpack.encode(["nobody", 1])]
    yield [key + msgspec.msgpack.encode(["abort", [1]])]
    yield [key + msgspec.msgpack.encode(["request", "a", ["x"], []])]
    yield [key + b"\x91" * 100_000]
    yield [key + b"\xdd\xff\xff\xff\xff"]


def test_garbage_is_counted_and_dropped(context, folder):
    key = ipc.new_key()
    receiver = ipc.Receiver(context, folder.address("in"), key, EngineInput)
    stranger = context.socket(zmq.PUSH)
    stranger.connect(folder.address("in"))
    for count, parts in enumerate(garbage(key), 1):
        stranger.send_multipart(parts)
        assert receiver.receive(5) is None
        assert receiver.dropped == count
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(folder.address("in").removeprefix("ipc://"))
        raw.sendall(os.urandom(500))
    sender = ipc.Sender(context, folder.address("in"), key)
    sender.send(Shutdown())
    # ZeroMQ still speaks its oldest protocol, so raw bytes may come through as frames too.
    assert next(message for _ in range(9) if (message := receiver.receive(5))) == Shutdown()
    assert not _Canary.fired
    stranger.close()
    sender.close()
    receiver.close()


def test_a_message_over_the_limit_is_refused_and_the_next_one_passes(context, folder, monkeypatch):
    monkeypatch.setattr(ipc, "MAX_FRAME_BYTES", 1000)
    key = ipc.new_key()
    receiver = ipc.Receiver(context, folder.address("in"), key, EngineInput)
    sender = ipc.Sender(context, folder.address("in"), key)
    with pytest.raises(ipc.FrameTooLong):
        sender.send(request(list(range(100_000, 101_000))))
    assert sender.send(Abort(["b"]))
    assert receiver.receive(5) == Abort(["b"])
    sender.close()
    receiver.close()


def test_a_full_queue_does_not_block_who_will_not_wait(context, folder):
    sender = ipc.Sender(context, folder.address("nobody"), ipc.new_key(), high_water=2)
    assert not all(sender.send(Shutdown(), wait=False) for _ in range(4))
    sender.close()


async def test_the_async_end_skips_garbage(folder):
    context = zmq.asyncio.Context()
    key = ipc.new_key()
    receiver = ipc.AsyncReceiver(context, folder.address("out"), key, EngineInput)
    plain = zmq.Context.shadow(context.underlying)
    stranger = plain.socket(zmq.PUSH)
    stranger.connect(folder.address("out"))
    for parts in garbage(key):
        stranger.send_multipart(parts)
    sender = ipc.Sender(context, folder.address("out"), key)
    sender.send(Abort(["c"]))
    assert await asyncio.wait_for(receiver.receive(), 5) == Abort(["c"])
    assert receiver.dropped <= len(list(garbage(key)))
    for end in (stranger, sender, receiver):
        end.close()
    context.destroy(linger=0)
