"""Who asks a new server first waits neither for what makes later steps cheaper nor for the vocabulary."""

import asyncio

from octavo.base.errors import EngineDead
from octavo.base.wire import Abort, Shutdown, StepOutputs
from octavo.engine.client import EngineClient
from octavo.engine.proc import FIRST_WAIT_S, Loop


class Core:
    """One piece to prepare; what it was asked, in order."""

    has_work = False

    def __init__(self):
        self.asked = []

    def step(self):
        self.asked.append("step")
        return StepOutputs() if self.asked[-2:] == ["abort", "step"] else None

    def abort(self, _):
        self.asked.append("abort")

    def prepare(self):
        self.asked.append("prepare")
        return self.asked.count("prepare") < 2


class Receiver:
    """Messages by the wait that they are asked for with; Shutdown once there are no more."""

    def __init__(self, *messages):
        self.messages, self.waits = list(messages), []

    def receive(self, wait):
        if wait == 0.0:
            return None
        self.waits.append(wait)
        return self.messages.pop(0) if self.messages else Shutdown()


class Sender:
    def send(self, message):
        """Nobody listens."""


def asked(*messages):
    core, receiver = Core(), Receiver(*messages)
    Loop(core, receiver, Sender()).run()
    return core.asked, receiver.waits


def test_a_first_request_is_served_before_anything_is_prepared():
    calls, waits = asked(Abort(["x"]))
    assert calls[:2] == ["abort", "step"]
    assert waits[0] == FIRST_WAIT_S


def test_without_one_the_quiet_is_used():
    calls, waits = asked(None)
    assert calls == ["step", "prepare", "step", "prepare"]
    assert waits == [FIRST_WAIT_S, None]


def test_the_vocabulary_follows_in_a_while_and_an_engine_that_is_gone_is_no_matter():
    told = []

    class Client(EngineClient):
        def __init__(self):
            """No process."""

        def provide_now(self):
            told.append(1)
            raise EngineDead("gone")

    async def main():
        Client().provide_later(0.01)
        assert not told
        await asyncio.sleep(0.05)

    asyncio.run(main())
    assert told == [1]
