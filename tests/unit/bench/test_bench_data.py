import json

import pytest

from octavo.base.errors import ConfigError
from octavo.bench.data import VOCAB, even, mixed, sharegpt_file, sharegpt_like


def test_the_mixed_set_is_the_one_that_engines_are_compared_on():
    load = mixed()
    assert (len(load), sum(map(len, load.prompts)), load.total_out) == (256, 142_827, 133_966)
    assert all(100 <= len(prompt) <= 1024 for prompt in load.prompts)
    assert mixed() == load


def test_even_loads_share_no_prefix():
    one, two = even(4, 30, 60, seed=1), even(4, 30, 60, seed=2)
    assert {len(prompt) for prompt in one.prompts} == {30}
    assert one.output_lens == [60] * 4
    assert all(a[:3] != b[:3] for a in one.prompts for b in two.prompts)
    assert all(0 <= token <= VOCAB for prompt in one.prompts for token in prompt)


def test_spread_stays_within_its_share():
    load = even(200, 100, 10, seed=0, spread=0.5)
    assert {50 <= len(prompt) <= 150 for prompt in load.prompts} == {True}
    assert len({len(prompt) for prompt in load.prompts}) > 20
    assert all(5 <= length <= 15 for length in load.output_lens)


def test_sharegpt_like_has_its_means():
    load = sharegpt_like(4000, seed=3)
    assert sum(map(len, load.prompts)) / 4000 == pytest.approx(161, rel=0.15)
    assert load.total_out / 4000 == pytest.approx(338, rel=0.2)


def test_sharegpt_file(tmp_path):
    file = tmp_path / "s.json"
    turns = [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "x" * 40}]
    file.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}, 7, {"conversations": "?"}]))
    load = sharegpt_file(str(file), 3, seed=0)
    assert load.prompts == ["hello there"] * 3
    assert load.output_lens == [10] * 3
    assert sharegpt_file(str(file), 1, seed=0, output_len=5).output_lens == [5]


@pytest.mark.parametrize("content", ["[]", "{", "3", '[{"conversations": []}]'])
def test_bad_files(tmp_path, content):
    file = tmp_path / "s.json"
    file.write_text(content)
    with pytest.raises(ConfigError):
        sharegpt_file(str(file), 3, seed=0)
    with pytest.raises(ConfigError):
        sharegpt_file(str(tmp_path / "none"), 3, seed=0)
