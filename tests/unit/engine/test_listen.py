"""Plain tokens on their short way: past the iterator, in the same order, or not at all."""

import asyncio

import pytest

from octavo.base.scores import BYTES, TokenLogprobs, write
from octavo.base.wire import TokenOutput
from octavo.engine.stream import MAX_BACKLOG, Mailbox, Stream


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 10))


async def pair():
    mailbox = Mailbox()
    return mailbox, Stream("r", mailbox, lambda _: None)


def test_tokens_go_to_the_listener_while_the_reader_waits() -> None:
    async def body():
        mailbox, stream = await pair()
        heard = []
        stream.listen(lambda output: heard.append(output.tokens) is None)
        mailbox.put_tokens("r", [1])  # nobody waits yet: it is kept
        assert (await anext(stream)).tokens == [1]
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        mailbox.put_tokens("r", [2])
        mailbox.put_tokens("r", [3, 4])
        mailbox.put(TokenOutput("r", [5], "length"))
        mailbox_after = await reader
        assert (heard, mailbox_after.tokens, mailbox_after.finish) == ([[2], [3, 4]], [5], "length")

    run(body())


def test_what_a_listener_does_not_take_is_read_and_nothing_overtakes_it() -> None:
    async def body():
        mailbox, stream = await pair()
        heard, ready = [], False

        def hear(output):
            heard.extend(output.tokens if ready else [])
            return ready

        stream.listen(hear)
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        mailbox.put_tokens("r", [1])
        ready = True
        mailbox.put_tokens("r", [2])  # behind one that is unread
        assert (await reader).tokens == [1, 2]
        mailbox.put_tokens("r", [3])  # the reader is busy with what it has read
        assert (heard, (await anext(stream)).tokens) == ([], [3])

    run(body())


def test_log_probabilities_keep_to_their_tokens_on_every_way() -> None:
    def lines(*tokens: int) -> bytes:
        return write([TokenLogprobs(token, -1.0, 1, [token], [-1.0]) for token in tokens])

    async def body():
        mailbox, stream = await pair()
        heard = []
        stream.listen(lambda output: heard.append(output) is None)
        mailbox.put(TokenOutput("r", [1], logprobs=lines(1), prompt_logprobs=lines(8)))
        mailbox.put_tokens("r", [2, 3], lines(2, 3))
        mailbox.put(TokenOutput("r", [4], logprobs=lines(4), prompt_logprobs=lines(9)))
        first = await anext(stream)
        assert (first.tokens, first.prompt_logprobs) == ([1, 2, 3, 4], lines(8, 9))
        assert first.logprobs == lines(1, 2, 3, 4)
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        mailbox.put_tokens("r", [5], lines(5))
        mailbox.put(TokenOutput("r", [6], "length", logprobs=lines(6)))
        last = await reader
        assert [(output.tokens, output.logprobs) for output in (*heard, last)] == [([5], lines(5)), ([6], lines(6))]

    run(body())


def test_an_unread_stream_is_ended_by_the_numbers_of_its_log_probabilities() -> None:
    async def body():
        mailbox, stream = await pair()
        line = write([TokenLogprobs(1, -1.0, 1, [1] * 20, [-1.0] * 20)])
        put = 0
        while mailbox.put_tokens("r", [1], line):
            put += 1
        assert put == MAX_BACKLOG // (len(line) // BYTES + 1)
        last = await anext(stream)
        assert (last.finish, last.tokens, last.logprobs) == ("error", [], b"")

    run(body())


def test_a_fault_of_the_listener_is_raised_to_the_reader() -> None:
    async def body():
        mailbox, stream = await pair()

        def hear(output):
            raise KeyError(output.tokens[0])

        stream.listen(hear)
        reader = asyncio.create_task(anext(stream))
        await asyncio.sleep(0)
        mailbox.put_tokens("r", [7])
        with pytest.raises(KeyError, match="7"):
            await reader
        stream.close()

    run(body())


def test_a_reader_that_is_too_slow_is_ended_by_tokens_too() -> None:
    async def body():
        mailbox, stream = await pair()
        assert mailbox.put_tokens("r", [1] * (1 << 20))
        assert not mailbox.put_tokens("r", [1])
        assert ((await anext(stream)).finish, mailbox.finished) == ("error", True)

    run(body())
