"""The sampling rules written out plainly for one row, and a bench that puts rows before the real sampler."""

import math

import numpy as np
import torch
from worker_toy import OPS, layout

from octavo.base.plan import AddedRow, StepPlan
from octavo.platform.cpu import CpuPlatform
from octavo.worker.batch import BatchBuilder
from octavo.worker.sample.rules import standard_rules
from octavo.worker.sample.sampler import Sampler
from octavo.worker.staging import Stager
from octavo.worker.table import RequestTable


def adjusted(logits, tokens, num_prompt, sampling):
    """Logits after everything that forbids or moves tokens; float64 ``[V]``."""
    x = np.array(logits, dtype=np.float64)
    output = list(tokens[num_prompt:])
    if sampling.allowed_token_ids:
        keep = np.zeros(len(x), dtype=bool)
        keep[[token for token in sampling.allowed_token_ids if 0 <= token < len(x)]] = True
        x[~keep] = -np.inf
    for word in sampling.bad_words:
        prefix = list(word[:-1])
        if len(prefix) <= len(output) and (not prefix or output[-len(prefix) :] == prefix):
            x[word[-1]] = -np.inf
    if len(output) < sampling.min_tokens:
        for token in (*(() if sampling.eos_ruled else sampling.eos_token_ids), *sampling.stop_token_ids):
            x[token] = -np.inf
    for token, bias in sampling.logit_bias:
        x[token] += bias
    for token in set(tokens):
        penalty = sampling.repetition_penalty
        x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
    for token in set(output):
        x[token] -= sampling.frequency_penalty * output.count(token) + sampling.presence_penalty
    return x


def distribution(logits, tokens, num_prompt, sampling):
    """Probability of each token; float64 ``[V]``."""
    x = adjusted(logits, tokens, num_prompt, sampling)
    if sampling.temperature == 0:
        return np.eye(len(x))[int(x.argmax())]
    x = x / sampling.temperature
    p = _softmax(x)
    p[p < sampling.min_p * p.max()] = 0
    if sampling.top_k > 0:
        p[np.argsort(-p, kind="stable")[sampling.top_k :]] = 0
    p /= p.sum()
    if sampling.top_p < 1:
        p = _until(p, np.argsort(-p, kind="stable"), sampling.top_p)
    if sampling.typical_p < 1:
        surprise = np.array([-math.log(q) if q > 0 else np.inf for q in p])
        entropy = sum(q * s for q, s in zip(p, surprise) if q > 0)
        p = _until(p, np.argsort(abs(surprise - entropy), kind="stable"), sampling.typical_p)
    return p


def _softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def _until(p, order, mass):
    kept, total = np.zeros_like(p), 0.0
    for token in order:
        kept[token] = p[token]
        total += p[token]
        if total >= mass:
            break
    return kept / kept.sum()


class Bench:
    """A table and a sampler without a model: rows with the given tokens, about to draw from the given logits."""

    def __init__(self, vocab_size, max_rows, platform=None):
        platform = platform or CpuPlatform()
        kv = layout(num_blocks=2)
        self.vocab_size = vocab_size
        self.stager = Stager(platform, 8, 64)
        self.table = RequestTable(platform, self.stager, kv, max_rows, 60, vocab_size)
        self.builder = BatchBuilder(self.table, self.stager, max_rows, max_rows)
        rules = standard_rules(max_rows, vocab_size, self.stager.send, OPS)
        self.sampler = Sampler(OPS, self.table, self.stager, rules)

    def draw(self, logits, tokens, num_prompts, samplings):
        """logits ``[S, V]``; gives the tokens ``[S]`` and the logits after the rules ``[S, V]``."""
        rows = list(range(len(tokens)))
        added = [
            AddedRow(row, f"{row}", list(tokens[row]), num_prompts[row], 0, samplings[row], [[0] * 15]) for row in rows
        ]
        plan = StepPlan(0, [], added, [], rows, [1] * len(rows), [len(line) - 1 for line in tokens], rows)
        self.table.apply(plan)
        self.sampler.apply(plan)
        batch = self.builder.build(plan)
        work = torch.tensor(np.asarray(logits), dtype=torch.float32).expand(len(rows), -1).clone()
        work = work.to(self.table.tokens.device)
        drawn = self.sampler.sample(work, self.sampler.prepare(batch))
        return drawn.tokens.cpu().numpy(), work.cpu().numpy()


def chi_square_fits(counts, probabilities, limit=3.7):
    """Whether counts fit the probabilities: Wilson and Hilferty's normal form of chi-square under `limit` sigmas."""
    expected = probabilities * counts.sum()
    assert counts[expected == 0].sum() == 0, "a token of probability zero was drawn"
    small = expected < 5
    bins = [*zip(counts[~small], expected[~small]), (counts[small].sum(), expected[small].sum())]
    bins = [(seen, wanted) for seen, wanted in bins if wanted > 0]
    freedom = len(bins) - 1
    if freedom == 0:
        return True
    statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in bins)
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom)) < limit
