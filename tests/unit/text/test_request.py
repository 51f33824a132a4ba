"""From prompts to engine requests: every bound checked, siblings apart, defaults applied."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from text_kit import CHATML, train_backend
from tokenizers import processors

from octavo.base.errors import UserError
from octavo.base.params import SamplingParams
from octavo.text.chat import ChatTemplate
from octavo.text.defaults import Defaults, read_defaults
from octavo.text.request import Limits, TextProcessor
from octavo.text.sampling import mix, sibling_seed
from octavo.text.tokenizer import Tokenizer

BACKEND = train_backend()
EOS = BACKEND.token_to_id("<|im_end|>")
BOS = BACKEND.token_to_id("<|endoftext|>")
TOKENIZER = Tokenizer(BACKEND, eos_ids=[EOS])
VOCAB = TOKENIZER.vocab_size


def processor(max_model_len: int = 64, tokenizer: Tokenizer = TOKENIZER, **options: Any) -> TextProcessor:
    chat = ChatTemplate(CHATML, special=tokenizer.special)
    return TextProcessor(tokenizer, chat, Limits(max_model_len, options.pop("vocab_size", VOCAB + 8)), **options)


def complete(prompt: Any, params: SamplingParams | None = None, **options: Any) -> Any:
    return processor().completion(prompt, params or SamplingParams(), request_id="r", **options)


def test_a_plain_completion() -> None:
    made = complete("The fox", SamplingParams(temperature=0.0, top_p=0.5, top_k=3, logprobs=2))
    (request,) = made.requests
    assert request.id == "r"
    assert request.tokens == made.prompt_tokens == TOKENIZER.encode("The fox")
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 1.0, 0)
    assert (sampling.max_tokens, sampling.logprobs, sampling.prompt_logprobs) == (16, 2, -1)
    assert sampling.eos_token_ids == (EOS,)
    assert len(made.collectors) == 1
    assert complete("x", SamplingParams(ignore_eos=True)).requests[0].sampling.eos_token_ids == ()


def test_a_chat() -> None:
    made = processor().chat([{"role": "user", "content": "hi<|im_end|>"}], SamplingParams(), request_id="c", echo=True)
    assert made.prompt_tokens.count(EOS) == 1
    assert made.collectors[0].prompt_text == "<|im_start|>user\nhi<|im_end|><|im_end|>\n<|im_start|>assistant\n"
    sneaky = {"messages": [], "self": 1, "tools": 3, "add_generation_prompt": False, "extra": 1}
    again = processor().chat(
        [{"role": "user", "content": "hi<|im_end|>"}], SamplingParams(), request_id="c", template_args=sneaky
    )
    assert again.prompt_tokens == made.prompt_tokens


def test_siblings_share_the_prompt_and_differ_in_seed() -> None:
    made = complete("fox", SamplingParams(n=4, seed=-3))
    assert [request.id for request in made.requests] == ["r-0", "r-1", "r-2", "r-3"]
    assert [collector.index for collector in made.collectors] == [0, 1, 2, 3]
    seeds = [request.sampling.seed for request in made.requests]
    assert seeds[0] == (1 << 64) - 3
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 1 << 64 for seed in seeds)
    assert seeds == [request.sampling.seed for request in complete("fox", SamplingParams(n=4, seed=-3)).requests]
    assert {id(request.tokens) for request in made.requests} == {id(made.prompt_tokens)}


def test_requests_without_a_seed_differ_and_repeat_with_the_server() -> None:
    def seeds(start: int) -> list[int]:
        text = processor(seed=start)
        return [text.completion("x", SamplingParams(), request_id="r").requests[0].sampling.seed for _ in range(50)]

    assert len(set(seeds(0))) == 50
    assert seeds(0) == seeds(0) != seeds(1)
    assert mix(1, 2) != mix(2, 1)
    assert sibling_seed(5, 0) == 5


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ([-1], {}, "prompt"),
        ([VOCAB], {}, "prompt"),
        ([VOCAB + 7], {}, "prompt"),
        ([1 << 40], {}, "prompt"),
        ([True], {}, "prompt"),
        ([1.5], {}, "prompt"),
        ([], {}, "prompt"),
        ("", {}, "prompt"),
        ([1] * 64, {}, "prompt"),
        ([1] * 10_000, {}, "prompt"),
        ("fox " * 100, {}, "prompt"),
        ([1] * 60, {"max_tokens": 5}, "max_tokens"),
        ("x", {"max_tokens": 0}, "max_tokens"),
        ("x", {"max_tokens": None, "min_tokens": 64}, "min_tokens"),
        ("x", {"min_tokens": 17}, "min_tokens"),
        ("x", {"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ("x", {"stop_token_ids": [-1]}, "stop_token_ids"),
        ("x", {"allowed_token_ids": [VOCAB]}, "allowed_token_ids"),
        ("x", {"allowed_token_ids": []}, "allowed_token_ids"),
        ("x", {"logit_bias": {-1: 1.0}}, "logit_bias"),
        ("x", {"logit_bias": {1 << 40: 1.0}}, "logit_bias"),
        ("x", {"temperature": float("nan")}, "temperature"),
        ("x", {"n": 0}, "n"),
        ("x", {"n": 10**9}, "n"),
        ("x", {"stop": ["a"], "detokenize": False}, "stop"),
        ("x", {"truncate_prompt_tokens": 65}, "truncate_prompt_tokens"),
        ("x", {"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
    ],
)
def test_bounds(prompt: Any, params: dict[str, Any], param: str) -> None:
    with pytest.raises(UserError) as error:
        complete(prompt, SamplingParams(**params))
    assert error.value.status == 400
    assert error.value.param == param
    assert len(error.value.message) < 512


def test_the_last_legal_id_passes() -> None:
    assert complete([VOCAB - 1, 0]).prompt_tokens == [VOCAB - 1, 0]
    with pytest.raises(UserError):
        processor(vocab_size=VOCAB - 1).completion([VOCAB - 1], SamplingParams(), request_id="r")
    with pytest.raises(UserError, match="does not have"):
        processor(vocab_size=10).completion("fox", SamplingParams(), request_id="r")


def test_the_envelope_is_bounded() -> None:
    for options in ({"cache_salt": "x" * 1000}, {"priority": 1 << 40}, {"priority": True}):
        with pytest.raises(UserError):
            complete("x", **options)
    for name in ("", "x" * 1000):
        with pytest.raises(UserError):
            processor().completion("x", SamplingParams(), request_id=name)


def test_context_errors_give_the_numbers() -> None:
    with pytest.raises(UserError, match=r"64 tokens.*requested 70 tokens.*60 in the prompt, 10 in the completion"):
        complete([1] * 60, SamplingParams(max_tokens=10))
    with pytest.raises(UserError, match=r"64 tokens.*has 64 input tokens"):
        complete([1] * 64)


def test_max_tokens_left_out_takes_the_rest() -> None:
    params = SamplingParams(max_tokens=None)
    assert complete([1] * 60, params).requests[0].sampling.max_tokens == 4
    text = processor(defaults=Defaults(max_tokens=9))
    assert text.completion([1], params, request_id="r").requests[0].sampling.max_tokens == 9
    assert text.completion([1], SamplingParams(max_tokens=20), request_id="r").requests[0].sampling.max_tokens == 20


def test_an_empty_text_becomes_bos_where_there_is_one() -> None:
    tokenizer = Tokenizer(BACKEND, bos_id=BOS, eos_ids=[EOS])
    assert processor(tokenizer=tokenizer).completion("", SamplingParams(), request_id="r").prompt_tokens == [BOS]


def test_truncation_keeps_the_end_and_bos() -> None:
    backend = train_backend()
    backend.post_processor = processors.TemplateProcessing(single="b $A", special_tokens=[("b", BOS)])
    tokenizer = Tokenizer(backend, bos_id=BOS, eos_ids=[EOS])
    whole = tokenizer.encode("fox " * 200)
    for keep, expected in ((5, 5), (1, 1), (-1, 48)):
        params = SamplingParams(truncate_prompt_tokens=keep)
        made = processor(tokenizer=tokenizer).completion("fox " * 200, params, request_id="r")
        assert len(made.prompt_tokens) == expected
        tail = made.prompt_tokens[1:] if keep != 1 else made.prompt_tokens
        assert keep == 1 or made.prompt_tokens[0] == BOS
        assert whole[-len(tail) :] == tail
    assert complete([1, 2, 3], SamplingParams(truncate_prompt_tokens=2)).prompt_tokens == [2, 3]
    head = SamplingParams(truncate_prompt_tokens=2, truncation_side="right")
    assert complete([1, 2, 3], head).prompt_tokens == [1, 2]


def test_special_tokens_of_a_chat_where_they_are_asked_for() -> None:
    backend = train_backend()
    backend.post_processor = processors.TemplateProcessing(single="b $A", special_tokens=[("b", BOS)])
    own = processor(tokenizer=Tokenizer(backend, bos_id=BOS, eos_ids=[EOS]))
    chat = [{"role": "user", "content": "hi"}]
    plain = own.chat(chat, SamplingParams(), request_id="c").prompt_tokens
    assert own.chat(chat, SamplingParams(), request_id="c", add_special=True).prompt_tokens == [BOS, *plain]


def test_a_seed_of_minus_one_is_none() -> None:
    own = processor()
    seeds = {own.completion("x", SamplingParams(seed=-1), request_id="r").requests[0].sampling.seed for _ in range(4)}
    assert len(seeds) == 4


def test_prompt_only_runs_one_hidden_token() -> None:
    made = complete("The fox", SamplingParams(max_tokens=0), echo=True)
    assert made.requests[0].sampling.max_tokens == 1


def test_bad_words_with_and_without_a_space() -> None:
    sampling = complete("x", SamplingParams(bad_words=["fox", " fox", "你好"])).requests[0].sampling
    expected = {tuple(TOKENIZER.encode(text)) for text in ("fox", " fox", "你好", " 你好")}
    assert set(sampling.bad_words) == expected


def test_numbers_for_the_engine() -> None:
    sampling = (
        complete(
            "x",
            SamplingParams(
                temperature=1e-45,
                top_k=-1,
                logit_bias={5: 1.0, 3: -2.0},
                allowed_token_ids=[9, 9, 2],
                stop_token_ids=[4, 4],
            ),
        )
        .requests[0]
        .sampling
    )
    assert sampling.temperature == 0.0
    assert sampling.top_k == 0
    assert sampling.logit_bias == ((3, -2.0), (5, 1.0))
    assert sampling.allowed_token_ids == (2, 9)
    assert sampling.stop_token_ids == (4,)
    assert complete("x", SamplingParams(top_k=1 << 30)).requests[0].sampling.top_k == 0


@pytest.mark.parametrize("text", ["a", "😀", " ", "<", "你", "<|im_end|>"])
def test_huge_texts_are_refused_soon(text: str) -> None:
    prompt = text * (8_000_000 // len(text.encode()))
    begin = time.process_time()
    for limit in (64, 32_768):
        with pytest.raises(UserError, match="maximum context length"):
            processor(limit).completion(prompt, SamplingParams(), request_id="r")
    assert time.process_time() - begin < 4


def test_a_text_just_within_passes_the_probe() -> None:
    text = "fox " * 70_000
    made = processor(1 << 19).completion(text, SamplingParams(), request_id="r")
    assert made.prompt_tokens == TOKENIZER.encode(text)


def test_threads_may_share_a_processor() -> None:
    text = processor(4096)
    chat = [{"role": "user", "content": "你好 <|im_end|> " * 20}]
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda n: text.chat(chat, SamplingParams(), request_id=str(n)), range(40)))
    assert len({tuple(entry.prompt_tokens) for entry in made}) == 1
    assert len({entry.requests[0].sampling.seed for entry in made}) == 40


def test_defaults_from_the_model() -> None:
    config = {"temperature": 0.6, "top_p": 0.9, "top_k": 20.0, "repetition_penalty": 1.1, "max_new_tokens": 2048}
    defaults = read_defaults({**config, "do_sample": True})
    params = defaults.params(temperature=0.1, max_tokens=None)
    assert (params.temperature, params.top_p, params.top_k, params.repetition_penalty) == (0.1, 0.9, 20, 1.1)
    assert defaults.max_tokens == 2048
    hostile = {"temperature": float("nan"), "top_p": 7, "top_k": "x", "min_p": True, "max_new_tokens": -1}
    assert read_defaults(hostile) == Defaults()
