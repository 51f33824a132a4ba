"""The schemas of benchmarks/schemas.jsonl under a model that draws evenly: whatever is not refused comes out whole."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from grammar_kit import compiled, json_spec, text_of, wander

from octavo.base.errors import UserError
from octavo.bench.structured.schemas import misfit, names_reason, read_cases

CASES = read_cases(Path(__file__).parents[3] / "benchmarks" / "schemas.jsonl")


def tried(spec):
    try:
        return compiled(spec), ""
    except UserError as error:
        return None, error.message


def check(cases, limits):
    found = Counter()
    for number, case in enumerate(cases):
        rng = np.random.default_rng(number)
        spec = json_spec(case.schema)
        shared, refusal = tried(spec)
        if shared is None:
            assert names_reason(case.schema, refusal), (case, refusal)
            found["refused"] += 1
            continue
        assert shared.opening is not None, case
        for more in limits:
            text = text_of(wander(spec, len(shared.opening) + more, rng, shared)).decode()
            assert misfit(case.schema, text) is None, (case, more, text)
            found["valid"] += 1
    return found


def test_a_sample_of_the_schemas():
    found = check(CASES[::9], (0, 2, 30))
    assert found["valid"] > 100
    assert found["refused"] < 60


@pytest.mark.slow
def test_all_schemas():
    found = check(CASES, (0, 1, 5, 25, 80, 200))
    assert found["valid"] > 2000
