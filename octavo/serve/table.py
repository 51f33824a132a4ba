"""The table of routes: which handler answers what, who may call it, how it says that something went wrong."""

from octavo.serve import admin, describe, probes
from octavo.serve.anthropic import errors as anthropic_errors
from octavo.serve.anthropic import messages
from octavo.serve.anthropic.schema import Conversation, MessagesRequest
from octavo.serve.auth import Scope
from octavo.serve.batches import routes as batches
from octavo.serve.calls import Endpoint
from octavo.serve.files import routes as files
from octavo.serve.openai import chat, completions, models, tokenize
from octavo.serve.openai.schema import ChatRequest, CompletionRequest, DetokenizeRequest, TokenizeRequest
from octavo.serve.responses import create as responses
from octavo.serve.responses import stored
from octavo.serve.responses.schema import ResponsesRequest

_ANTHROPIC = anthropic_errors.envelope

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("/v1/chat/completions", ("POST",), Scope.USE, chat.create, ChatRequest),
    Endpoint("/v1/completions", ("POST",), Scope.USE, completions.create, CompletionRequest),
    Endpoint("/v1/responses", ("POST",), Scope.USE, responses.create, ResponsesRequest),
    Endpoint("/v1/responses/{response_id}", ("GET",), Scope.USE, stored.show),
    Endpoint("/v1/responses/{response_id}", ("DELETE",), Scope.USE, stored.delete),
    Endpoint("/v1/responses/{response_id}/input_items", ("GET",), Scope.USE, stored.input_items),
    Endpoint("/v1/responses/{response_id}/cancel", ("POST",), Scope.USE, stored.cancel),
    Endpoint("/v1/messages", ("POST",), Scope.USE, messages.create, MessagesRequest, _ANTHROPIC),
    Endpoint("/v1/messages/count_tokens", ("POST",), Scope.USE, messages.count_tokens, Conversation, _ANTHROPIC),
    Endpoint("/v1/files", ("POST",), Scope.USE, files.upload),
    Endpoint("/v1/files", ("GET",), Scope.USE, files.index),
    Endpoint("/v1/files/{file_id}", ("GET",), Scope.USE, files.show),
    Endpoint("/v1/files/{file_id}", ("DELETE",), Scope.USE, files.delete),
    Endpoint("/v1/files/{file_id}/content", ("GET",), Scope.USE, files.content),
    Endpoint("/v1/batches", ("POST",), Scope.USE, batches.create, batches.BatchRequest),
    Endpoint("/v1/batches", ("GET",), Scope.USE, batches.index),
    Endpoint("/v1/batches/{batch_id}", ("GET",), Scope.USE, batches.show),
    Endpoint("/v1/batches/{batch_id}/cancel", ("POST",), Scope.USE, batches.cancel),
    Endpoint("/v1/models", ("GET",), Scope.USE, models.index),
    Endpoint("/v1/models/{model:path}", ("GET",), Scope.USE, models.show),
    Endpoint("/tokenize", ("POST",), Scope.USE, tokenize.tokenize, TokenizeRequest),
    Endpoint("/detokenize", ("POST",), Scope.USE, tokenize.detokenize, DetokenizeRequest),
    Endpoint("/sleep", ("POST",), Scope.ADMIN, admin.sleep),
    Endpoint("/wake_up", ("POST",), Scope.ADMIN, admin.wake_up),
    Endpoint("/is_sleeping", ("GET",), Scope.ADMIN, admin.is_sleeping),
    Endpoint("/metrics", ("GET",), Scope.METRICS, probes.metrics),
    Endpoint("/version", ("GET",), Scope.USE, probes.version),
    Endpoint("/openapi.json", ("GET",), Scope.DOCS, describe.openapi),
    Endpoint("/plan", ("GET",), Scope.USE, probes.plan),
    Endpoint("/docs", ("GET",), Scope.DOCS, describe.page),
    Endpoint("/ping", ("GET", "POST"), Scope.USE, probes.health),
    Endpoint("/health", ("GET",), Scope.OPEN, probes.health),
    Endpoint("/ready", ("GET",), Scope.OPEN, probes.ready),
    Endpoint("/", ("GET",), Scope.PAGE, probes.page),
    Endpoint("/reset_prefix_cache", ("POST",), Scope.ADMIN, admin.reset_prefix_cache),
)
