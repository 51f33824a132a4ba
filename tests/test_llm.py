"""The offline API over an engine with a FakeExecutor and a tokenizer of single bytes."""

import copy
import json
import pickle

import numpy as np
import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from octavo.base.config import CacheConfig, EngineConfig, ModelConfig, SchedulerConfig
from octavo.base.errors import ConfigError, EngineError, UnknownName, UserError
from octavo.base.params import SamplingParams, StructuredOutputsParams
from octavo.base.specs import KVSpec
from octavo.engine.assemble import Phases, finish
from octavo.engine.inproc import InprocClient
from octavo.engine.resolve import resolve
from octavo.llm import LLM, CompletionOutput
from octavo.models.arch import Architecture
from octavo.platform.base import Facts
from octavo.testing.fake_executor import FakeExecutor, fold_model
from octavo.text.load import load_text
from octavo.text.parse.speech import Speech
from octavo.text.request import Limits
from octavo.weights.facts import ModelFiles

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
LETTERS = list(range(97, 123))
MACHINE = Facts(
    device="cpu",
    name="none",
    total_memory=1 << 30,
    free_memory=1 << 30,
    cores=1,
    dtypes=("float32",),
    asynchronous=False,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    letters = pre_tokenizers.ByteLevel.alphabet()
    byte_of = {char: byte for byte, char in enumerate(_byte_characters())}
    backend = Backend(models.BPE(vocab={char: byte_of[char] for char in letters}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["</s>"])
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>", "chat_template": TEMPLATE}))
    arch = Architecture(
        family="fake", vocab_size=257, hidden_size=8, layers=(), max_position=256, dtype="float32", norm_eps=1e-6
    )
    return ModelFiles(
        path=folder,
        format="safetensors",
        config={},
        generation_config={"temperature": 0.5},
        arch=arch,
        tokenizer_dir=folder,
        gguf=None,
        chat_template=TEMPLATE,
        weight_bytes=0,
    )


def _byte_characters():
    """The character by which byte-level BPE writes each byte (Radford et al. 2019, encoder.py)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in plain]
    table = {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(rest)}
    return [table[byte] for byte in range(256)]


@pytest.fixture
def make(files):
    def make(*, max_waiting=1024, num_blocks=129, depth=1, **fake):
        config = EngineConfig(
            model=ModelConfig(),
            cache=CacheConfig(num_gpu_blocks_override=num_blocks, block_size=4),
            scheduler=SchedulerConfig(max_num_seqs=4, max_waiting=max_waiting, async_scheduling=depth > 1),
        )
        resolved = resolve(config, files.arch, MACHINE)
        executor = FakeExecutor(257, **fake)
        client = InprocClient(finish(config, resolved, [KVSpec(1, 8)], 257, executor, Phases(), files))
        llm = LLM.__new__(LLM)
        llm._set_up(
            config,
            client,
            load_text(files, config.model).processor(Limits(client.ready.max_model_len, client.ready.vocab_size)),
        )
        return llm

    return make


def greedy(**values):
    return SamplingParams(temperature=0.0, allowed_token_ids=LETTERS, **values)


def said(prompt, count):
    """What the fake model writes after `prompt`."""
    model, tokens, sampling = fold_model(257), list(prompt.encode()), _Letters()
    for _ in range(count):
        tokens.append(model(tokens, 0, sampling))
    return bytes(tokens[len(prompt.encode()) :]).decode()


class _Letters:
    temperature = 0.0
    allowed_token_ids = tuple(LETTERS)


@pytest.mark.parametrize("max_waiting", [1, 1024])
@pytest.mark.parametrize("depth", [1, 2])
def test_results_come_in_order_whatever_their_lengths(make, depth, max_waiting):
    llm = make(depth=depth, max_waiting=max_waiting, num_blocks=60)
    prompts = [f"prompt number {i}" * (1 + i % 3) for i in range(25)]
    params = [greedy(max_tokens=1 + (i * 7) % 20) for i in range(25)]
    results = llm.generate(prompts, params, use_tqdm=False)
    assert [result.prompt for result in results] == prompts
    for prompt, param, result in zip(prompts, params, results):
        (output,) = result.outputs
        assert output.text == said(prompt, param.max_tokens)
        assert output.token_ids == list(output.text.encode())
        assert output.finish_reason == "length"
        assert output.finished()
        assert result.finished
        assert result.prompt_token_ids == list(prompt.encode())
        assert result.prompt_logprobs is None
        assert output.logprobs is None
        assert output.cumulative_logprob is None
    assert llm.stats.kv_usage == 0
    assert len({result.request_id for result in results}) == 25


def test_every_form_of_a_prompt(make):
    llm = make()
    ids = list(b"hello")
    for prompts in ("hello", ["hello"], ids, [ids], tuple(ids), {"prompt": "hello"}, [{"prompt_token_ids": ids}]):
        (result,) = llm.generate(prompts, greedy(max_tokens=3), use_tqdm=False)
        assert result.outputs[0].text == said("hello", 3)
        assert result.prompt_token_ids == ids
        assert result.prompt in ("hello", None)
    assert llm.generate([], use_tqdm=False) == []


def test_n_gives_that_many_and_they_share_the_prompt(make):
    llm = make()
    params = SamplingParams(n=3, temperature=1.0, seed=5, max_tokens=6, allowed_token_ids=LETTERS)
    first, second = llm.generate(["a prompt of some length", "another"], params, use_tqdm=False)
    assert [output.index for output in first.outputs] == [0, 1, 2]
    assert len({output.text for output in first.outputs}) == 3
    assert first.num_cached_tokens == 20
    assert len(second.outputs) == 3
    again = llm.generate("a prompt of some length", params, use_tqdm=False)[0]
    assert [output.text for output in again.outputs] == [output.text for output in first.outputs]


def test_stop_strings_end_early_and_free_the_request(make):
    llm = make()
    whole = said("hello", 30)
    stop = whole[4:6]
    (result,) = llm.generate("hello", greedy(max_tokens=30, stop=[stop]), use_tqdm=False)
    output = result.outputs[0]
    assert output.text == whole[: whole.index(stop)]
    assert output.finish_reason == "stop"
    assert output.stop_reason == stop
    assert llm.stats.kv_usage == 0
    assert llm.stats.running == 0


def test_logprobs_in_vllms_shape(make):
    llm = make()
    (result,) = llm.generate("hey", greedy(max_tokens=2, logprobs=2, prompt_logprobs=1), use_tqdm=False)
    output = result.outputs[0]
    assert len(output.logprobs) == 2
    for token, position in zip(output.token_ids, output.logprobs):
        assert token in position
        assert position[token].rank == 1
        assert position[token].decoded_token == chr(token)
        assert len(position) == 2
    total = sum(position[token].logprob for token, position in zip(output.token_ids, output.logprobs))
    assert output.cumulative_logprob == pytest.approx(total)
    assert result.prompt_logprobs[0] is None
    assert [list(b"hey")[i] in position for i, position in enumerate(result.prompt_logprobs) if i] == [True, True]


def test_logprobs_are_lists_once_they_are_read(make):
    llm = make()
    prompts = ["hey", "you", "there", "all"]
    counts = [5, 0, None, 20]
    asked = [greedy(max_tokens=9, logprobs=count) for count in counts]
    results = llm.generate(prompts, asked, use_tqdm=False)
    again = llm.generate(prompts, asked, use_tqdm=False)
    for result, other, count in zip(results, again, counts):
        output = result.outputs[0]
        sent = pickle.loads(pickle.dumps(output))  # before anybody has read it
        assert sent == output == copy.deepcopy(other.outputs[0])
        assert output.logprobs == other.outputs[0].logprobs
        if count is None:
            assert output.logprobs is None
            continue
        assert type(output.logprobs) is list
        assert output.logprobs is output.logprobs
        assert {type(position) for position in output.logprobs} == {dict}
        for token, position in zip(output.token_ids, output.logprobs):
            assert next(iter(position)) == token
            assert [one.rank for one in position.values()] == list(range(1, max(count, 1) + 1))
            assert all(one.decoded_token == llm.get_tokenizer().token_text(id) for id, one in position.items())
        output.logprobs.append({})
        assert len(output.logprobs) == 10
    assert repr(again[1].outputs[0].logprobs) in repr(again[1])
    assert CompletionOutput(0).logprobs is None
    assert CompletionOutput(0, logprobs=[{}]).logprobs == [{}]


def test_chat_one_conversation_and_several(make):
    llm = make()
    ask = [{"role": "user", "content": "hi"}]
    (one,) = llm.chat(ask, greedy(max_tokens=4), use_tqdm=False)
    assert one.prompt == "<user>hi<a>"
    assert one.outputs[0].text == said("<user>hi<a>", 4)
    two = llm.chat([ask, [*ask, {"role": "assistant", "content": "yo"}]], greedy(max_tokens=4), use_tqdm=False)
    assert two[0].outputs[0].text == one.outputs[0].text
    assert two[1].prompt == "<user>hi<assistant>yo<a>"
    (bare,) = llm.chat(ask, greedy(max_tokens=4), use_tqdm=False, add_generation_prompt=False)
    assert bare.prompt == "<user>hi"


def test_chat_with_tools_gives_their_calls(make):
    llm = make()
    llm._text.speech = Speech(llm.get_tokenizer(), TEMPLATE, tool_parser="hermes")
    ask = [{"role": "user", "content": "hi"}]
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "add", "parameters": schema}}]
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=120)
    (one,) = llm.chat(ask, params, tools=tools, tool_choice="required", use_tqdm=False)
    (call, *_) = one.outputs[0].tool_calls
    assert call.name == "add"
    assert list(json.loads(call.arguments)) == ["n"]
    assert "tool_call" not in one.outputs[0].text
    (free,) = llm.chat(ask, greedy(max_tokens=4), tools=tools, use_tqdm=False)
    assert free.outputs[0].tool_calls == []
    assert free.outputs[0].text
    with pytest.raises(UserError, match="letters, digits"):
        llm.chat(ask, tools=[{"type": "function", "function": {"name": "a b"}}])
    llm.close()


def test_defaults_come_from_the_model(make):
    assert make().get_default_sampling_params().temperature == 0.5


@pytest.mark.parametrize(
    ("prompts", "params", "param"),
    [
        (["good", {"text": "x"}], SamplingParams(), "prompts[1]"),
        (["good", None], SamplingParams(), "prompts[1]"),
        (["good", [1, -1]], SamplingParams(), "prompts[1].prompt"),
        (["good", [1, 257]], SamplingParams(), "prompts[1].prompt"),
        (["good", "x" * 5000], SamplingParams(), "prompts[1].prompt"),
        (["good", [1.5]], SamplingParams(), "prompts[1].prompt"),
        ("good", SamplingParams(temperature=float("nan")), "temperature"),
        ("good", SamplingParams(n=1000), "n"),
        (["good", "more"], [SamplingParams()], "sampling_params"),
        ("good", {"temperature": 1}, "sampling_params"),
        (5, SamplingParams(), "prompts"),
        (b"good", SamplingParams(), "prompts"),
        (["good", b"more"], SamplingParams(), "prompts[1]"),
        ("good", SamplingParams(n=10**5000), "n"),
        ("good", SamplingParams(repetition_penalty=1e-40), "repetition_penalty"),
        ("good", SamplingParams(temperature=np.array([0.5, 1.0])), "temperature"),
    ],
)
def test_bad_input_is_told_before_anything_runs(make, prompts, params, param):
    llm = make()
    with pytest.raises(UserError) as caught:
        llm.generate(prompts, params, use_tqdm=False)
    assert caught.value.param == param
    assert llm.stats.steps == 0
    assert llm.generate("good", greedy(max_tokens=2), use_tqdm=False)[0].outputs[0].text == said("good", 2)


@pytest.mark.parametrize(
    ("values", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"stop": ["a", 1]}, "stop[1]"),
        ({"structured_outputs": {"jsn": {}}}, "structured_outputs"),
        ({"structured_outputs": 5}, "structured_outputs"),
        ({"logit_bias": {"x": 1.0}}, "logit_bias"),
        ({"max_tokens": 1.5}, "max_tokens"),
    ],
)
def test_a_value_of_another_type_is_told_by_its_field(values, param):
    with pytest.raises(UserError) as caught:
        SamplingParams(**values).typed()
    assert caught.value.param == param
    assert str(caught.value).startswith(f"{param}: ")


def test_a_dict_holds_a_form_and_numpys_numbers_are_numbers():
    given = SamplingParams(
        structured_outputs={"regex": "a+"},
        temperature=np.float32(0.5),
        max_tokens=np.int64(3),
        stop_token_ids=np.array([5, 6]),
    )
    assert given.typed() == SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="a+"), temperature=0.5, max_tokens=3, stop_token_ids=[5, 6]
    )


@pytest.mark.parametrize("messages", [[], "hi", [5], [{"role": "user", "content": 5}], [[]]])
def test_bad_messages(make, messages):
    with pytest.raises(UserError):
        make().chat(messages, use_tqdm=False)


@pytest.mark.parametrize(
    ("words", "param"),
    [
        ({"tools": 5}, "tools"),
        ({"tools": [5]}, "tools"),
        ({"tools": "f"}, "tools"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {5: 1}}, "chat_template_kwargs"),
    ],
)
def test_bad_words_beside_messages(make, words, param):
    with pytest.raises(UserError) as caught:
        make().chat([{"role": "user", "content": "hi"}], use_tqdm=False, **words)
    assert caught.value.param == param


@pytest.mark.parametrize("priority", [1, "1", ["1"], [1.5], [True], [1, 2]])
def test_bad_priorities(make, priority):
    with pytest.raises(UserError) as caught:
        make().generate(["hi"], use_tqdm=False, priority=priority)
    assert caught.value.param == "priority"


def test_an_interrupt_leaves_a_usable_llm(make, monkeypatch):
    llm = make(depth=2)
    step, count = llm._client.step, iter(range(100))

    def interrupted():
        if next(count) == 3:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(llm._client, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["a", "b", "c"], greedy(max_tokens=20), use_tqdm=False)
    assert llm.stats.running == llm.stats.waiting == 0
    assert llm.stats.kv_usage == 0
    assert llm.generate("a", greedy(max_tokens=2), use_tqdm=False)[0].outputs[0].text == said("a", 2)


def test_a_request_that_fails_again_raises(make):
    llm = make(fail_steps=[1, 2])
    with pytest.raises(EngineError):
        llm.generate("a", greedy(max_tokens=2), use_tqdm=False)
    assert llm.generate("b", greedy(max_tokens=2), use_tqdm=False)[0].outputs[0].text == said("b", 2)


def test_the_bar_counts_prompts_and_shows_speed(make, capfd):
    make().generate(["a", "b"], greedy(max_tokens=2))
    shown = capfd.readouterr().err
    assert "Processed prompts" in shown
    assert "2/2" in shown
    assert "tok/s" in shown


def test_wrong_arguments_of_llm():
    with pytest.raises(UnknownName, match="did you mean max_model_len"):
        LLM("nothing", max_model_lenn=5)
    with pytest.raises(ConfigError, match="max_num_seqs takes"):
        LLM("nothing", max_num_seqs=0)


def test_reset_and_close(make):
    llm = make()
    with llm:
        assert llm.reset_prefix_cache() is True
        assert llm.get_tokenizer().vocab_size == 257
    assert llm._client.engine.core.executor.closed
    with pytest.raises(EngineError, match="closed"):
        llm.generate("good", use_tqdm=False)


def test_sleep_and_wake(make):
    llm = make()
    before = llm.generate(["ab"], greedy(max_tokens=5), use_tqdm=False)[0].outputs[0].token_ids
    llm.sleep(level=2)
    assert llm.is_sleeping()
    with pytest.raises(EngineError, match="asleep"):
        llm.generate(["ab"], greedy(max_tokens=5), use_tqdm=False)
    llm.wake_up(tags=["weights"])
    assert llm.is_sleeping()
    llm.wake_up()
    assert not llm.is_sleeping()
    assert llm.generate(["ab"], greedy(max_tokens=5), use_tqdm=False)[0].outputs[0].token_ids == before
    with pytest.raises(EngineError, match="level"):
        llm.sleep(level=3)
    with pytest.raises(EngineError, match="unknown tag 'disk'"):
        llm.wake_up(tags=["disk"])
