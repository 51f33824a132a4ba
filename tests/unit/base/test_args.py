import math
from typing import Annotated, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from octavo.base.args import changed, options_of, parse, to_argv
from octavo.base.config import EngineConfig, OctavoConfig, doc
from octavo.base.errors import ConfigError


def serve(*argv: str, environ: dict[str, str] | None = None) -> OctavoConfig:
    (config,) = parse(argv, [OctavoConfig], "model", environ or {})
    return config


def problem(*argv: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        serve(*argv, environ=environ)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_nothing_given_is_the_default_tree():
    assert serve() == OctavoConfig()


def test_flags_fill_the_tree():
    config = serve("m", "--max-model-len", "25.6k", "--no-enable-prefix-caching", "--dtype=float16", "-tp", "2")
    assert config.engine.model.model == "m"
    assert config.engine.model.max_model_len == 25_600
    assert config.engine.cache.enable_prefix_caching is False
    assert config.engine.model.dtype == "float16"
    assert config.engine.device.tensor_parallel_size == 2


def test_underscores_work_as_in_vllm():
    assert serve("--max_model_len=4K").engine.model.max_model_len == 4096


def test_lists_repeat_and_take_several():
    config = serve("m", "--api-key", "a", "--api-key", "b", "--served-model-name", "x", "y")
    assert config.serve.api_key == ["a", "b"]
    assert config.engine.model.served_model_name == ["x", "y"]


def test_keys_of_vllms_variable_are_not_lost():
    assert serve(environ={"VLLM_API_KEY": "a,b"}).serve.api_key == ["a", "b"]
    assert serve(environ={"VLLM_API_KEY": "a", "OCTAVO_API_KEY": "ours"}).serve.api_key == ["ours"]
    assert serve("--api-key", "flag", environ={"VLLM_API_KEY": "a"}).serve.api_key == ["flag"]


def test_auto_and_none_mean_unset():
    assert serve("--max-model-len=auto").engine.model.max_model_len is None
    assert serve("--threads=none").engine.device.threads is None


def test_precedence(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("port: 1\nblock-size: 32\nmax_num_seqs: 7\n")
    environ = {"OCTAVO_PORT": "2", "OCTAVO_BLOCK_SIZE": "64"}
    config = serve("--config", str(file), "--port", "3", environ=environ)
    assert (config.serve.port, config.engine.cache.block_size, config.engine.scheduler.max_num_seqs) == (3, 64, 7)


def test_file_takes_sections_lists_and_typed_values(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text("model: m\ncache: {block_size: 8, enable-prefix-caching: false}\napi-key: [a, b]\nthreads: null\n")
    config = serve("--config", str(file))
    assert config.engine.model.model == "m"
    assert config.engine.cache.block_size == 8
    assert not config.engine.cache.enable_prefix_caching
    assert config.serve.api_key == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("block_size: 2", "from 4 to 256, got 2"),
        ("block_size: true", "whole number"),
        ("prot: 1", "did you mean port"),
        ("- 1", "expected keys and values"),
        ("a: [", "not YAML, line"),
        ("port: {a: 1}", "whole number"),
        ("!!python/object/apply:os.system ['true']", "not YAML"),
        ("1", "expected keys and values"),
        ("&a [*a]", "expected keys and values"),
        ("port: 1\nport: 2", "port is given twice"),
        ("max-n: 1\nmax_n: 1", "max_n is given twice"),
        ("serve: {port: 1}\nport: 2", "port is given twice"),
        ("serve: {port: 1}\nserve: {host: a}", "serve is given twice"),
        ("serve:\n  port: 1\n  port: 1", "port is given twice"),
        ('host: "a\\0b"', "without zero bytes"),
        ('served-model-name: ["\\ud800"]', "UTF-8 text"),
        ("max-waiting-tokens: 9223372036854775808", "more than any machine has"),
    ],
)
def test_bad_files(tmp_path, text, words):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    assert words in problem("--config", str(file))


def test_missing_binary_and_huge_files(tmp_path):
    assert "No such file" in problem("--config", str(tmp_path / "none.yaml"))
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in problem("--config", str(tmp_path / "b.yaml"))
    (tmp_path / "h.yaml").write_text("#" * (1 << 21))
    assert "larger" in problem("--config", str(tmp_path / "h.yaml"))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--max-modl-len", "1"], "did you mean --max-model-len"),
        (["--zzz"], "unknown flag --zzz"),
        (["--block-size", "3"], "--block-size takes a whole number from 4 to 256, got 3"),
        (["--gpu-memory-utilization", "0"], "above 0 and at most 1"),
        (["--gpu-memory-utilization", "nan"], "above 0"),
        (["--cpu-kvcache-space", "inf"], "above 0"),
        (["--dtype", "bfloat61"], "did you mean bfloat16?"),
        (["--port"], "expected one argument"),
        (["--port", "1.5"], "whole number"),
        (["--port", "65536"], "from 0 to 65535"),
        (["--port", "9" * 5000], "whole number"),
        (["a", "b"], "unexpected argument 'b'"),
        (["a", "--model", "b"], "given twice"),
        (["--max-num-seqs", "-1"], "from 1 to 65536"),
        (["--enable-prefix-caching=1"], "takes no value"),
        (["--kv-cache-memory-bytes", "9" * 30], "more than any machine has"),
        (["--revision", "\udcff\udcfe"], "UTF-8 text"),
        (["--ssl-certfile="], "--ssl-certfile is empty"),
    ],
)
def test_bad_arguments(argv, words):
    assert words in problem(*argv)


def test_bad_variable_is_named():
    assert problem(environ={"OCTAVO_PORT": "x"}).startswith("OCTAVO_PORT takes")


def test_empty_variable_is_unset_and_lists_split_at_commas():
    config = serve(environ={"OCTAVO_PORT": "", "OCTAVO_API_KEY": "a,b", "OCTAVO_ENFORCE_EAGER": "true"})
    assert config.serve.port == 8000
    assert config.serve.api_key == ["a", "b"]
    assert config.engine.device.enforce_eager is True


def test_every_field_of_the_tree_is_an_option_with_words():
    options = options_of([OctavoConfig])
    assert len(options) > 25
    for option in options:
        assert option.description.endswith((".", "?")), option.name


def test_two_roots_and_a_clash():
    class Extra(Struct, frozen=True, kw_only=True):
        words: Annotated[list[Annotated[int, msgspec.Meta(ge=1)]], doc("Numbers.")] = []
        way: Annotated[Literal["up", "down"] | None, doc("Which way.")] = None

    extra, engine = parse(["--words", "1", "2k", "--way", "up"], [Extra, EngineConfig], None, {})
    assert extra.words == [1, 2000]
    assert extra.way == "up"
    assert engine == EngineConfig()
    with pytest.raises(ConfigError, match="at least 1"):
        parse(["--words", "0"], [Extra], None, {})
    with pytest.raises(TypeError, match="share a name"):
        options_of([EngineConfig, OctavoConfig])


def _values(option):
    if option.choices:
        return st.sampled_from(option.choices)
    low = option.meta.ge if option.meta.ge is not None else option.meta.gt or 0
    high = option.meta.le if option.meta.le is not None else 1 << 40
    if option.kind is int:
        return st.integers(int(low), int(high))
    if option.kind is float:
        return st.floats(low, high, exclude_min=option.meta.gt is not None, allow_subnormal=False)
    if option.kind is bool:
        return st.booleans()
    return st.text("aZ09 é☃-=_,'\"\\/\n", min_size=1, max_size=8).filter(
        lambda text: text.lower() not in ("none", "null")
    )


@given(st.data())
def test_to_argv_comes_back(data):
    """Any tree that validates, as flags and parsed again, is the same tree."""
    options = options_of([OctavoConfig])
    chosen = data.draw(st.lists(st.sampled_from(options), max_size=6, unique_by=lambda option: option.name))
    tree: dict = {}
    for option in chosen:
        node = tree
        for step in option.path[:-1]:
            node = node.setdefault(step, {})
        value = data.draw(_values(option))
        node[option.name] = [value] if option.is_list else value
    config = msgspec.convert(tree, OctavoConfig)
    assert parse(to_argv(config), [OctavoConfig], None, {}) == [config]
    assert len(changed(config)) <= len(chosen)
    assert all(not isinstance(value, float) or math.isfinite(value) for value in changed(config).values())


def test_what_takes_no_value_and_what_is_no_number(tmp_path):
    assert problem("--enforce-eager=maybe") == "--enforce-eager takes no value, got 'maybe'"
    assert serve("--model=--").engine.model.model == "--"
    assert "takes one of auto, vllm" in problem("--generation-config", "/nope")
    file = tmp_path / "config.yaml"
    for text in ("port: " + "9" * 5000, "port: 2020-06-40"):
        file.write_text(text)
        assert "not YAML" in problem("--config", str(file))
