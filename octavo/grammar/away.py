"""A process that follows constraints, as its engine sees it, and the guides that it has."""

import select
import socket
import time
from collections.abc import Callable, Sequence

import msgspec

from octavo.grammar.alone import take
from octavo.grammar.frames import Broken, frame, receive_frame
from octavo.grammar.guide import Guide
from octavo.grammar.orders import Answer, Begin, Begun, Fill, Filled, Leave, Order, Ready, Stood, Take
from octavo.grammar.rows import OWN

AWAKE_S = 0.0005
ANSWER_S = 2.0  # the longest that one waits for an answer to a step's order; they take less than a millisecond


class Away:
    """A guide that a follower has, until it comes `here`."""

    __slots__ = ("_failure", "_make", "begun", "here", "link", "number", "param", "refused", "since_s", "tokens")

    def __init__(
        self, link: "Link", number: int, param: str | None, make: Callable[[], Guide], tokens: Sequence[int]
    ) -> None:
        """`make` gives the guide anew; it has taken `tokens` since."""
        self.link = link
        self.number = number
        self.param = param
        self.begun = False
        self.refused = False  # the follower cannot make it
        self.since_s = time.monotonic()
        self.here: Guide | None = None
        self.tokens = list(tokens)
        self._make = make
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        return self._failure if self.here is None else self.here.failure

    def fail(self, message: str) -> None:
        self._failure = message

    def come(self) -> Guide:
        """Be here from now on."""
        guide = self._make()
        for token in self.tokens:
            take(guide, token)
        guide.failure = guide.failure or self._failure
        self.here = guide
        return guide


class Link:
    """To one follower, at its `place` among them. What is asked of it raises Broken when it is gone, or silent for too
    long.

    Masks lie in memory that all have. `first`: the first of `OWN` rows of it that are this follower's, for masks that
    are not filled where they belong.
    """

    def __init__(self, place: int, stream: socket.socket, first: int) -> None:
        self.place = place
        self._first = first
        self.guides: dict[int, Away] = {}
        self.backends: list[str] = []  # whose guides it takes, once it has said so
        self._stream = stream
        self._stream.settimeout(ANSWER_S)
        self._poll = select.poll()
        self._poll.register(stream, select.POLLIN)
        self._answers = msgspec.msgpack.Decoder(Answer)
        self._filled: dict[int, int] = {}  # rows of masks, by their guide's number
        self._owed: Sequence[Away] | None = None  # whose masks are being filled
        self._left: list[int] = []  # numbers of guides that it may forget

    def begin(self, guide: Away, order: Begin) -> None:
        self.guides[guide.number] = guide
        self._order(order)

    def leave(self, guide: Away) -> None:
        if self.guides.pop(guide.number, None) is not None and not guide.refused:
            self._left.append(guide.number)
            self._filled.pop(guide.number, None)

    def look(self) -> None:
        """Hear what it has said unasked."""
        while self._poll.poll(0):
            self._hear()

    def take(self, guides: Sequence[Away], tokens: list[int], first: int | None) -> None:
        """Order it; `stood` is due. `first`: the row where masks belong from, if it is known."""
        self.settle()
        first = self._first if first is None else first
        self._order(Take([guide.number for guide in guides], tokens, first))
        self.lie(guides, first)
        self._owed = guides

    def stood(self, guides: Sequence[Away]) -> list[int]:
        """What came of `take`. It fills the masks behind these tokens at once."""
        answer = self._wait()
        if not isinstance(answer, Stood) or len(answer.tokens) != len(guides):
            raise Broken("an answer to another order")
        _fail(guides, answer.failures)
        return answer.tokens

    def fill(self, guides: Sequence[Away]) -> None:
        """See that all masks are there, or will be; `places` is due."""
        missing = [guide for guide in guides if guide.number not in self._filled]
        if not missing:
            return
        self.settle()
        own = range(self._first, self._first + OWN)
        first = 1 + max((row for row in self._filled.values() if row in own), default=self._first - 1)
        if first + len(missing) > own.stop:
            missing, first, self._filled = list(guides), self._first, {}
        self._order(Fill([guide.number for guide in missing], first))
        self._filled.update((guide.number, first + index) for index, guide in enumerate(missing))
        self._owed = missing

    def places(self, guides: Sequence[Away]) -> list[int]:
        """The rows in which the guides' masks are."""
        self.settle()
        return [self._filled[guide.number] for guide in guides]

    def lie(self, guides: Sequence[Away], first: int | None) -> None:
        """Masks of these guides lie from this row on, and those of no others are to be had. None: of none."""
        self._filled = {} if first is None else {guide.number: row for row, guide in enumerate(guides, first)}

    def settle(self) -> None:
        """Wait until what was ordered is done."""
        while self._owed is not None:
            self._wait()

    def close(self) -> None:
        self._stream.close()

    def _order(self, order: Order) -> None:
        data = frame(msgspec.msgpack.encode(order))
        if self._left:
            data = frame(msgspec.msgpack.encode(Leave(self._left))) + data
            self._left = []
        try:
            self._stream.sendall(data)
        except OSError as error:
            raise Broken(str(error)) from None

    def _wait(self) -> Answer:
        """Hear what it says next, which may take it a moment: too short a one to fall asleep."""
        end = time.monotonic() + AWAKE_S
        while not self._poll.poll(0):
            if time.monotonic() > end and not self._poll.poll(1000 * ANSWER_S):
                raise Broken("no answer")
        answer = self._hear()
        return answer if not isinstance(answer, Begun) else self._wait()

    def _hear(self) -> Answer:
        try:
            answer: Answer = self._answers.decode(receive_frame(self._stream.recv))
        except (OSError, msgspec.MsgspecError) as error:
            raise Broken(str(error)) from None
        match answer:
            case Ready(backends):
                self.backends = backends
            case Begun(number, there) if number in self.guides:
                guide = self.guides[number]
                guide.begun, guide.refused = there, not there
            case Filled(failures) if self._owed is not None:
                _fail(self._owed, failures)
                self._owed = None
        return answer


def _fail(guides: Sequence[Away], failures: dict[int, str]) -> None:
    for place, message in failures.items():
        guides[place].fail(message)
