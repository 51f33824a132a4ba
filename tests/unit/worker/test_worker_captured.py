"""Captured steps give the tokens of steps that are launched kernel by kernel, whatever their rows ask for."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from worker_toy import OPS, POISON, Driver, NewBlocks, ToyModel, greedy, layout, random_prompt, resolved

from octavo.base.scores import read
from octavo.kernels.ahead import Room
from octavo.platform.cpu import CpuPlatform
from octavo.worker.assemble import build_runner

try:
    import triton

    from octavo.kernels.triton.stage import stage
except ImportError:
    stage = None

VOCAB = 50
WORDS = -(-VOCAB // 32)


class Again(CpuPlatform):
    """Captured work is done again at each replay, its result in the place of the first."""

    replays = 0

    def capture(self, work, rehearse=None):
        if rehearse is not None:
            rehearse(lambda: work(lambda: None))
        result = work(lambda: None)

        def replay():
            self.replays += 1
            again = work(lambda: None)
            if result is not None and again is not result:
                result.copy_(again)
            return result

        return SimpleNamespace(replay=replay)


class PlainAhead:
    """AheadOps in words of plain Python; attention needs no plan."""

    fresh_rooms = False

    def __init__(self, *shape):
        del shape

    def places(self, room: Room) -> int:
        del room
        return 1

    def plan(self, out, room, query_lens, seq_lens, window):
        """Nothing to tell."""

    def attach(self, meta, room, window, plan):
        """Nothing to tell."""

    def stage(self, lines, into, sent, block_size):
        starts, scratch = sent.query_start.tolist(), lines.tokens.shape[0] - 1
        for group, row in sent.grown[:, 0].ge(0).nonzero().tolist():
            place, block = sent.grown[group, :, row].tolist()
            lines.blocks[group, sent.rows[row], place] = block
        rows, lengths = sent.rows.tolist(), sent.seq_lens.tolist()
        for at, (row, length) in enumerate(zip(rows, lengths)):
            into.block_table[:, at] = lines.blocks[:, row]
            first = length - (starts[at + 1] - starts[at])
            for token in range(starts[at], starts[at + 1]):
                self._token(lines, into, token, row, first + token - starts[at], block_size)
        for token in range(starts[-1], into.input_ids.shape[0]):
            self._token(lines, into, token, scratch, 0, block_size)
        for place, each in enumerate(sent.sampled):
            into.sampled[place] = each

    def _token(self, lines, into, token, row, position, block_size):
        into.input_ids[token] = lines.tokens[row, position]
        into.positions[token] = position
        into.prompt_lens[token] = lines.num_prompt[row]
        block = lines.blocks[:, row, position // block_size]
        into.slots[:, token] = block.long() * block_size + position % block_size


class StagedAhead(PlainAhead):
    """It has Triton's kernel, interpreted, find a step's places."""

    def stage(self, *args):
        stage(*args)


class DeviceToy(ToyModel):
    """It reads the rows' lengths where a captured step has them."""

    def _past(self, meta, kv):
        meta.query_lens = meta.query_start.diff().tolist()
        meta.seq_lens_host = meta.seq_lens.tolist()
        found = super()._past(meta, kv)
        return torch.cat([found, torch.zeros(meta.slots.shape[0] - found.shape[0], 1)])


class Held(Driver):
    """Sends masks with steps, too."""

    masks = None

    def launch(self, *args, **more):
        runner, masks = self.runner, self.masks
        sample = runner.sample
        runner.sample = lambda _: sample({} if masks is None else {"grammar": masks})
        try:
            return super().launch(*args, **more)
        finally:
            del runner.sample


def drivers(groups=1, vocab=VOCAB, ahead=PlainAhead):
    """One that captures, its rooms all there, and one that does not."""
    made = []
    for capture in (True, False):
        ops = SimpleNamespace(**{**vars(OPS), "ahead": ahead})
        model = (DeviceToy if capture else ToyModel)(vocab)
        runner = build_runner(Again(), ops, model, layout(groups, num_blocks=256), resolved(), vocab, capture=capture)
        while runner.prepare():
            pass
        made.append(Held(runner, groups))
    return made


def test_a_room_is_tuned_before_it_is_captured():
    """On the scratch row, and each once; tokens stay what they are."""
    seen = []

    class Watched(Again):
        def capture(self, work, rehearse=None):
            captured = super().capture(work, rehearse)
            seen.append("captured")
            return captured

    def tune(work):
        states = work()
        seen.append(states.shape[0])

    ops = SimpleNamespace(**{**vars(OPS), "ahead": PlainAhead, "tune": tune})
    runner = build_runner(Watched(), ops, DeviceToy(VOCAB), layout(num_blocks=256), resolved(), VOCAB, capture=True)
    for _ in range(2):
        assert runner.prepare()
    assert seen == [1, "captured", "captured", 6, "captured", "captured"]
    while runner.prepare():
        pass
    driver, plain = Held(runner, 1), drivers()[1]
    found = [each.launch([each.added(0, [1, 2, 3])], [0], [3], [0], [0]).result().tokens for each in (driver, plain)]
    assert found[0] == found[1]


def counted(driver, *args, **more):
    """Tokens of a step, and how many pieces of captured work it started."""
    platform = driver.runner._platform
    before = platform.replays
    return driver.launch(*args, **more).result().tokens, platform.replays - before


def told(driver, *args, **more):
    """Tokens of a step, what is told of their log-probabilities, and how many pieces of captured work it started."""
    platform = driver.runner._platform
    before = platform.replays
    result = driver.launch(*args, **more).result()
    return result.tokens, [read(line) for line in result.logprobs], platform.replays - before


def masks_of(rng, rows):
    bits = rng.integers(-(1 << 31), 1 << 31, (len(rows), WORDS), dtype=np.int64).astype(np.int32)
    return np.array(rows, dtype=np.int32), bits


SAMPLINGS = {
    "greedy": lambda _: greedy(),
    "random": lambda row: greedy(temperature=1.0, seed=row),
    "narrow": lambda row: greedy(temperature=0.8, seed=row, top_k=9, top_p=0.9, presence_penalty=0.5),
    "mixed": lambda row: greedy(temperature=float(row % 2), seed=row),
}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("groups", [1, 2])
def test_tokens_are_the_same(sampling, groups):
    rng = np.random.default_rng(groups)
    prompts = [random_prompt(rng) for _ in range(5)]
    samplings = [SAMPLINGS[sampling](row) for row in range(5)]
    captured, plain = (driver.generate(prompts, samplings, 9) for driver in drivers(groups))
    assert captured == plain


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_masks_are_the_same(sampling):
    """Steps in which all rows are held, some, others, none, and fewer than there were."""
    prompts = [[1 + row, 2, 3] for row in range(5)]
    found = []
    for driver, captured in zip(drivers(), (True, False)):
        rng = np.random.default_rng(3)
        added = [driver.added(row, prompts[row], sampling=SAMPLINGS[sampling](row)) for row in range(5)]
        tokens = []
        for step, held in enumerate([[0, 1, 2, 3, 4], [0, 1, 2, 3, 4], [1, 3], [3, 1], [], [0, 4], [2]]):
            driver.masks = masks_of(rng, held) if held else None
            count, start = (3, 0) if step == 0 else (1, 2 + step)
            here, replays = counted(driver, added, range(5), [count] * 5, [start] * 5, range(5))
            tokens.append(here)
            # Body and tail, or body, score and draw, and between those what a rule forbids.
            assert replays == captured * (2 if sampling == "greedy" and not held else 3 + bool(held))
            added = []
        found.append(tokens)
        rng = np.random.default_rng(3)
        _, first = masks_of(rng, range(5))
        allowed = np.unpackbits(first.view(np.uint8), axis=1, bitorder="little")
        assert all(allowed[row, token] for row, token in enumerate(tokens[0]))
    assert found[0] == found[1]


TELLING = {
    "greedy": lambda _: greedy(logprobs=5),
    "some": lambda row: greedy(temperature=float(row % 2), seed=row, logprobs=(-1, 3, 0, 20, -1)[row]),
    "narrow": lambda row: greedy(temperature=0.8, seed=row, top_k=3, logprobs=8),
    "penalties": lambda row: greedy(repetition_penalty=1.4, presence_penalty=1.5, logprobs=row),
}


def same(one, other):
    """Whether two positions are told alike, up to the sums' rounding."""
    assert (one.token, one.rank, one.ids) == (other.token, other.rank, other.ids)
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert one.logprob == pytest.approx(other.logprob, abs=1e-5)


@pytest.mark.parametrize("sampling", TELLING)
@pytest.mark.parametrize("masked", [False, True])
def test_log_probabilities_are_the_models_own(sampling, masked):
    """What temperatures, penalties and masks make of the logits does not change what is told of them. Five rows stand
    in a room of eight; one leaves halfway."""
    samplings = [TELLING[sampling](row) for row in range(5)]
    found = []
    for driver, captured in zip(drivers(), (True, False)):
        rng = np.random.default_rng(5)
        driver.masks = masks_of(rng, [1, 3]) if masked else None
        added = [driver.added(row, [1 + row, 2, 3], sampling=samplings[row]) for row in range(5)]
        steps = [told(driver, added, range(5), [3] * 5, [0] * 5, range(5))]
        for step in range(8):
            rows = range(5) if step < 4 else [0, 2, 3, 4]
            driver.masks = masks_of(rng, [1, 3]) if masked else None
            ones = [1] * len(rows)
            steps.append(told(driver, (), rows, ones, [3 + step] * len(rows), range(len(rows))))
        # Body, score, keep, draw and describe, and what a rule forbids.
        assert [replays for _, _, replays in steps] == [captured * (5 + masked)] * 9
        found.append(steps)
    for (tokens, lines, _), (others, more, _) in zip(*found):
        assert tokens == others
        assert [len(each) for each in lines] == [len(each) for each in more]
        for token, line, other in zip(tokens, lines, more):
            for one, two in zip(line, other):
                assert one.token == token
                same(one, two)


def test_what_is_told_of_rows_whose_logits_are_no_numbers():
    for driver in drivers(vocab=POISON + 1):
        added = [driver.added(row, prompt, sampling=greedy(logprobs=2)) for row, prompt in enumerate([[1], [POISON]])]
        result = driver.launch(added, [0, 1], [1, 1], [0, 0], [0, 1]).result()
        assert result.tokens[1] == -1
        assert (len(read(result.logprobs[0])), result.logprobs[1]) == (1, b"")


def more_blocks(held, rows, taken, groups):
    """For each of these rows a block behind those it has, in each group; a row may be named twice."""
    entries = []
    for row in rows:
        entries += [(row, group, held[row], next(taken)) for group in range(groups)]
        held[row] += 1
    return NewBlocks(*map(list, zip(*entries)))


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rows", [[4, 0, 2, 3], [4, 0, 2]], ids=["own room", "larger room"])
@pytest.mark.parametrize("ahead", [PlainAhead, StagedAhead])
def test_tables_grow_the_same(rows, groups, ahead):
    """Blocks that come when they are needed, before that, for rows that sit out, and two at once for one row."""
    if ahead is StagedAhead and (stage is None or not triton.knobs.runtime.interpret):
        pytest.skip("the table lies on the host, where only the interpreter's kernels look")
    found = []
    for driver in drivers(groups, POISON, ahead):
        rng, taken = np.random.default_rng(7), iter(range(101, 256))
        driver.per_row = 1
        added = [driver.added(row, [1 + row, 2, 3]) for row in rows]
        held, known = dict.fromkeys(rows, 1), dict.fromkeys(rows, 3)
        every = range(len(rows))
        tokens = [driver.launch(added, rows, [3] * len(rows), [0] * len(rows), every).result().tokens]
        for step in range(24):
            out = rows[step % len(rows)] if step % 5 == 4 else None
            going = [row for row in rows if row != out]
            needy = [row for row in rows if held[row] * 4 <= known[row]]
            needy += [
                row for row in rows if held[row] * 4 <= known[row] + 2 and rng.random() < 0.4 and row not in needy
            ]
            needy += rows[:1] * 2 * (step == 11)
            news = [more_blocks(held, needy, taken, groups)] if needy else []
            starts = [known[row] for row in going]
            ones, which = [1] * len(going), range(len(going))
            tokens.append(driver.launch((), going, ones, starts, which, new_blocks=news).result().tokens)
            for row in going:
                known[row] += 1
        found.append(tokens)
        assert all(-1 not in each for each in tokens)
    assert found[0] == found[1]
