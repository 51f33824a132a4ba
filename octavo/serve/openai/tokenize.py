"""``/tokenize`` and ``/detokenize``, in vLLM's shapes."""

from octavo.base.errors import UserError
from octavo.serve.calls import Backend, Call, Reply, json_reply
from octavo.serve.decode import Schema
from octavo.serve.openai.answer import bounded_call
from octavo.serve.openai.bounds import check_bounds
from octavo.serve.openai.prepare import chat_tokens, note_unknown
from octavo.serve.openai.schema import DetokenizeRequest, TokenizeRequest

_TOKENIZE = Schema(TokenizeRequest)
_DETOKENIZE = Schema(DetokenizeRequest)


async def tokenize(call: Call) -> Reply:
    """Token ids of a prompt or of a rendered conversation."""
    backend = call.service.backend
    body, unknown = await call.read(_TOKENIZE)
    note_unknown(call, unknown)
    check_bounds(body, call.limits)
    call.service.check_model(body.model)
    if (body.prompt is None) == (body.messages is None):
        raise UserError("Send either prompt or messages.", param="prompt")
    async with bounded_call(call):
        tokens = await call.service.off_loop(call.body_bytes, _encode, backend, body)
        strings = (
            await call.service.off_loop(len(tokens), _strings, backend, tokens) if body.return_token_strs else None
        )
    return json_reply(
        {
            "count": len(tokens),
            "max_model_len": backend.engine.ready.max_model_len,
            "tokens": tokens,
            "token_strs": strings,
        }
    )


async def detokenize(call: Call) -> Reply:
    """The text of token ids, special tokens written out."""
    backend = call.service.backend
    body, unknown = await call.read(_DETOKENIZE)
    note_unknown(call, unknown)
    call.service.check_model(body.model)
    size, longest = backend.text.tokenizer.vocab_size, backend.engine.ready.max_model_len
    if len(body.tokens) > longest:
        raise UserError(f"tokens may hold at most one context of {longest} token ids.", param="tokens")
    for index, token in enumerate(body.tokens):
        if token >= size:
            raise UserError(f"tokens[{index}] is not in the vocabulary of {size}.", param=f"tokens[{index}]")
    async with bounded_call(call):
        return await call.service.off_loop(call.body_bytes, _decode, backend, body.tokens)


def _encode(backend: Backend, body: TokenizeRequest) -> list[int]:
    if body.messages is not None:
        return chat_tokens(backend, body, body.messages, add_special=bool(body.add_special_tokens))
    special = body.add_special_tokens is not False
    return backend.text.tokenize(body.prompt or "", add_special=special)


def _strings(backend: Backend, tokens: list[int]) -> list[str]:
    return [backend.text.tokenizer.token_text(token) for token in tokens]


def _decode(backend: Backend, tokens: list[int]) -> Reply:
    return json_reply({"prompt": backend.text.tokenizer.decode(tokens, skip_special=False)})
