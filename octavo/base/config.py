"""The configuration tree: frozen, every field documented, the one source of flags, environment and help.

`None` means "decide for me"; engine/resolve.py turns the tree into a `Resolved` by named rules. Names are
vLLM's wherever the meaning is the same.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from octavo.base import params

DType = Literal["auto", "float32", "float16", "bfloat16"]
LoadFormat = Literal["auto", "safetensors", "gguf", "dummy"]
Device = Literal["auto", "cpu", "cuda"]
Quantization = Literal["int8", "int4"]
CacheDType = Literal["auto", "float32", "float16", "bfloat16", "int8"]
Activations = Literal["auto", "int8", "int16"]
Policy = Literal["fair", "fcfs", "priority"]


def doc(
    text: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
) -> Meta:
    """What a field means, and its bounds. A bounded field that may be None keeps the None outside: msgspec's rule."""
    return Meta(description=text, ge=ge, gt=gt, le=le)  # type: ignore[call-overload,no-any-return]


class ModelConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: Annotated[str, doc("Folder, .gguf file, hub name (owner/name), or the name of a known demo model.")] = ""
    served_model_name: Annotated[list[str], doc("Names the API answers to; the first is the one it reports.")] = []
    tokenizer: Annotated[str | None, doc("Folder or hub name of the tokenizer, if not the model's own.")] = None
    revision: Annotated[str | None, doc("Branch, tag or commit on the hub.")] = None
    dtype: Annotated[DType, doc("Type of weights and activations; auto takes the checkpoint's, float32 on a CPU.")] = (
        "auto"
    )
    load_format: Annotated[LoadFormat, doc("How weights are read; dummy makes random ones from the config alone.")] = (
        "auto"
    )
    quantization: (
        Annotated[
            Quantization,
            doc("Form that matrices of floats take at load, on a CPU. Unset: kept as the checkpoint has them."),
        ]
        | None
    ) = None
    max_model_len: (
        Annotated[
            int,
            doc("Longest prompt plus output, in tokens. Unset: the model's own, fitted to memory.", ge=1, le=1 << 24),
        ]
        | None
    ) = None
    chat_template: Annotated[str | None, doc("File with a Jinja chat template, instead of the model's own.")] = None
    generation_config: Annotated[
        Literal["auto", "vllm"],
        doc("Where default sampling values come from: auto (the model's generation_config.json) or vllm (none)."),
    ] = "auto"
    seed: Annotated[int, doc("Seed of dummy weights and of requests that give none.", ge=0, le=(1 << 63) - 1)] = 0
    download_dir: Annotated[str | None, doc("Where downloaded models are kept, instead of the hub's cache folder.")] = (
        None
    )


class CacheConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    block_size: Annotated[int, doc("Tokens in one KV block.", ge=4, le=256)] = 16
    enable_prefix_caching: Annotated[bool, doc("Share KV blocks of equal prefixes between requests.")] = True
    gpu_memory_utilization: Annotated[
        float,
        doc(
            "Largest share of the device's memory that this engine may take, weights included.",
            gt=0,
            le=1,
        ),
    ] = 0.92
    kv_cache_memory_bytes: Annotated[int, doc("Bytes of KV cache, instead of what memory allows.", ge=1)] | None = None
    cpu_kvcache_space: (
        Annotated[float, doc("GiB of KV cache on a CPU. Unset: a quarter of free memory, 4 at most.", gt=0)] | None
    ) = None
    kv_cache_dtype: Annotated[
        CacheDType,
        doc("Type that keys and values are kept in; int8 is for CPUs. auto: the model's, float16 on a CPU."),
    ] = "auto"
    num_gpu_blocks_override: Annotated[int, doc("Number of KV blocks, instead of what memory allows.", ge=2)] | None = (
        None
    )


class SchedulerConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    max_num_seqs: Annotated[int, doc("Most requests in one step.", ge=1, le=65_536)] | None = None
    max_num_batched_tokens: (
        Annotated[
            int,
            doc(
                "Most tokens in one step. Unset: by the device, and several prompts share 1,984 of them; not for LLM.",
                ge=1,
                le=1 << 20,
            ),
        ]
        | None
    ) = None
    long_prefill_token_threshold: (
        Annotated[
            int,
            doc(
                "Most tokens of one prompt in a step while other requests run; 0: no limit. "
                "Unset: 512 at its start, fewer the deeper in it, more beside long contexts; no limit for LLM.",
                ge=0,
                le=1 << 20,
            ),
        ]
        | None
    ) = None
    scheduling_policy: Annotated[
        Policy,
        doc("fair: keys take turns by tokens served; fcfs: in order of arrival; priority: lower priority value first."),
    ] = "fair"
    async_scheduling: Annotated[
        bool | None, doc("Plan a step while the one before runs. Unset: on where the device runs by itself.")
    ] = None
    wake_on_request: Annotated[
        bool, doc("A request that finds the engine asleep wakes it, instead of being answered 503.")
    ] = False
    max_waiting: Annotated[int, doc("Requests that may wait; one more is answered 429.", ge=1, le=1 << 20)] = 1024
    max_waiting_tokens: Annotated[int, doc("Prompt tokens that may wait in all.", ge=1)] = 1 << 24


class DeviceConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    device: Annotated[Device, doc("Where the model runs; auto takes a GPU if there is one.")] = "auto"
    tensor_parallel_size: Annotated[int, doc("GPUs that share each layer.", ge=1, le=64)] = 1
    threads: (
        Annotated[int, doc("CPU threads for the model. Unset: the cores this process may use.", ge=1, le=1024)] | None
    ) = None
    cpu_activations: Annotated[
        Activations,
        doc(
            "What activations are rounded to before a product with packed weights on a CPU: int16 (15 bits) is exact "
            "to some hundredths of a log-probability, int8 is up to 1.6 times as fast for many tokens at once. auto: "
            "int8 for Q4_0 and Q8_0 files and weights quantized at load, int16 for others."
        ),
    ] = "auto"
    enforce_eager: Annotated[bool, doc("Never use CUDA graphs.")] = False
    attention_backend: Annotated[str, doc("Name of the attention implementation; auto takes the best that fits.")] = (
        "auto"
    )


class EngineConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All that the engine process needs."""

    model: ModelConfig = ModelConfig()
    cache: CacheConfig = CacheConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    device: DeviceConfig = DeviceConfig()


class LimitsConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one HTTP request may hold and how long each part of it may take. What is over a limit is a 4xx."""

    max_n: Annotated[int, doc("Most choices of one prompt (n).", ge=1, le=params.MAX_N)] = 4
    max_prompts: Annotated[int, doc("Most prompts of one completion request.", ge=1, le=65_536)] = 256
    max_messages: Annotated[int, doc("Most messages of one conversation.", ge=1, le=16_384)] = 2048
    max_tools: Annotated[int, doc("Most tools of one request.", ge=0, le=4096)] = 128
    max_stops: Annotated[int, doc("Most stop strings of one request.", ge=0, le=params.MAX_STOPS)] = 16
    max_stop_chars: Annotated[int, doc("Most characters of one stop string.", ge=1, le=params.MAX_STOP_CHARS)] = 1024
    max_logit_bias: Annotated[int, doc("Most tokens of one logit_bias.", ge=0, le=params.MAX_LOGIT_BIAS)] = 1024
    max_logprobs: Annotated[
        int, doc("Most log-probabilities a position (logprobs, top_logprobs).", ge=0, le=params.MAX_LOGPROBS)
    ] = 20
    max_json_depth: Annotated[int, doc("Deepest nesting of a body.", ge=8, le=256)] = 64
    max_json_keys: Annotated[int, doc("Most keys of a body, those of all its objects together.", ge=64, le=1 << 20)] = (
        10_000
    )
    max_url_bytes: Annotated[int, doc("Longest URL.", ge=256, le=65_536)] = 8 << 10
    max_header_bytes: Annotated[int, doc("Most bytes of all headers of a request.", ge=1024, le=1 << 20)] = 32 << 10
    max_headers: Annotated[int, doc("Most headers of a request.", ge=16, le=10_000)] = 100
    max_request_id_chars: Annotated[
        int, doc("Longest X-Request-Id that is taken over, of letters, digits and _.:-.", ge=0, le=1024)
    ] = 128
    header_timeout: Annotated[float, doc("Seconds for the headers of a request to arrive.", gt=0)] = 10.0
    body_gap_timeout: Annotated[float, doc("Longest silence inside a body, in seconds.", gt=0)] = 10.0
    min_body_rate: Annotated[int, doc("Least bytes a second of a body after its first ten seconds.", ge=1)] = 1024
    send_timeout: Annotated[float, doc("Seconds after which a client that reads nothing is cut off.", gt=0)] = 60.0
    timeout_keep_alive: Annotated[int, doc("Seconds for which a connection may do nothing between requests.", ge=1)] = (
        30
    )
    max_connections: Annotated[
        int, doc("Most open connections. Beyond it idle ones are closed, and then newcomers refused.", ge=16)
    ] = 16_384
    max_connections_per_address: Annotated[
        int, doc("Most open connections from one address that is not this machine's own. 0: no bound.", ge=0)
    ] = 4096
    queue_timeout: Annotated[
        float, doc("Seconds a request may wait for its first step; then it is answered 429. 0: no bound.", ge=0)
    ] = 60.0


class RecoveryConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens when the engine's process ends under running requests."""

    max_engine_restarts: Annotated[
        int, doc("Restarts of a failed engine within ten minutes; one more and the server ends.", ge=0, le=1000)
    ] = 5
    engine_stall_timeout: (
        Annotated[
            float,
            doc(
                "Seconds without a step after which a working engine is restarted. Unset: 60 on a GPU, 600 else.", gt=0
            ),
        ]
        | None
    ) = None


class ServeConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    host: Annotated[str, doc("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, doc("Port to listen on; 0 takes a free one.", ge=0, le=65_535)] = 8000
    api_key: Annotated[
        list[str], doc("Key that requests must carry as a bearer token; may be given more than once.")
    ] = []
    api_key_file: Annotated[
        str | None,
        doc("File of named keys with scopes and limits, made by octavo key new; read again when it changes."),
    ] = None
    insecure: Annotated[bool, doc("Let the network in without any key.")] = False
    admin_port: (
        Annotated[
            int,
            doc(
                "Port on 127.0.0.1 for admin actions, which then are nowhere else; 0 takes a free one.", ge=0, le=65_535
            ),
        ]
        | None
    ) = None
    shared_prefix_cache: Annotated[bool, doc("Let keys share cached prefixes. Each has its own by default.")] = False
    ssl_certfile: Annotated[str | None, doc("PEM file of the certificate and its chain: serve TLS.")] = None
    ssl_keyfile: Annotated[str | None, doc("PEM file of the certificate's key, if it is not in the same file.")] = None
    ssl_ca_certs: Annotated[str | None, doc("PEM file of the authorities that clients' certificates come from.")] = None
    ssl_cert_reqs: (
        Annotated[
            int,
            doc("Client certificates: 0 none, 1 checked if given, 2 needed. Unset: 2 with ssl-ca-certs.", ge=0, le=2),
        ]
        | None
    ) = None
    ssl_ciphers: Annotated[str | None, doc("OpenSSL's names of the ciphers allowed up to TLS 1.2.")] = None
    enable_ssl_refresh: Annotated[bool, doc("Take changed certificate files over while running.")] = True
    max_body_bytes: Annotated[int, doc("Largest request body.", ge=1024, le=1 << 30)] = 8 << 20
    allowed_origins: Annotated[
        list[str], doc("Web sites whose pages may call (https://app.example); * lets any in. None by default.")
    ] = []
    public_docs: Annotated[bool, doc("Answer /docs and /openapi.json without a key.")] = False
    response_store: Annotated[
        str | None, doc("SQLite file of stored responses. Unset: in the user's state folder, one for each port.")
    ] = None
    no_response_store: Annotated[bool, doc("Keep no responses, whatever a request asks for.")] = False
    response_store_days: Annotated[float, doc("Days for which a stored response is kept.", gt=0, le=3650)] = 30.0
    response_store_bytes: Annotated[
        int, doc("Bytes of stored responses; beyond it the oldest go.", ge=1 << 20, le=1 << 40)
    ] = 1 << 30
    files_dir: Annotated[
        str | None, doc("Folder of uploaded files and batches. Unset: in the user's state folder, one for each port.")
    ] = None
    no_files: Annotated[bool, doc("Do not answer /v1/files and /v1/batches.")] = False
    max_file_bytes: Annotated[int, doc("Largest file that may be uploaded.", ge=1024, le=1 << 40)] = 200 << 20
    max_files_bytes: Annotated[int, doc("Bytes of all files kept, results of batches included.", ge=1024)] = 4 << 30
    batch_concurrency: Annotated[int, doc("Lines of batches that run at once.", ge=1, le=65_536)] = 32
    request_timeout: Annotated[float, doc("Seconds after which a request is ended.", gt=0)] = 600.0
    shutdown_timeout: Annotated[float, doc("Seconds that running requests get after SIGTERM.", ge=0)] = 30.0
    tool_call_parser: Annotated[
        str, doc("Form of the model's tool calls, by vLLM's name; auto recognises it, none leaves calls as text.")
    ] = "auto"
    reasoning_parser: Annotated[
        str, doc("Form of the model's thoughts, by vLLM's name; auto recognises it, none leaves them in the text.")
    ] = "auto"
    enable_auto_tool_choice: Annotated[
        bool, doc("Accepted for compatibility: tool calls are found whenever a request has tools.")
    ] = True
    exclude_tools_when_tool_choice_none: Annotated[
        bool, doc("Leave tools out of the prompt of a request whose tool_choice is none.")
    ] = False
    limits: LimitsConfig = LimitsConfig()
    metrics_compat: Annotated[
        Literal["vllm"] | None, doc("vllm: /metrics says what vLLM says under vLLM's names too.")
    ] = None
    otlp_traces_endpoint: Annotated[
        str | None, doc("URL to which OpenTelemetry traces go over HTTP, as http://collector:4318/v1/traces.")
    ] = None
    enable_log_requests: Annotated[
        bool, doc("Log the parameters of each request, and at --log-level debug its prompt too.")
    ] = False
    max_log_len: Annotated[int, doc("Most characters of a prompt in the log. Unset: a line's length.", ge=0)] | None = (
        None
    )
    disable_log_stats: Annotated[bool, doc("Write no line of throughput and queue every ten seconds.")] = False
    disable_uvicorn_access_log: Annotated[bool, doc("Write no line for each HTTP request.")] = False
    no_ui: Annotated[bool, doc("Do not answer / with the chat page.")] = False
    recovery: RecoveryConfig = RecoveryConfig()
    log_level: Annotated[Literal["debug", "info", "warning", "error"], doc("Least severe log line shown.")] = "info"
    log_format: Annotated[Literal["text", "json"], doc("Form of log lines.")] = "text"


class OctavoConfig(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole tree, as `octavo serve` takes it."""

    engine: EngineConfig = EngineConfig()
    serve: ServeConfig = ServeConfig()


class Resolved(Struct, frozen=True, kw_only=True):
    """What start-up settled: no None, nothing left to decide but the number of KV blocks."""

    device: str  # "cpu" or "cuda"
    dtype: str  # "float32", "float16", "bfloat16"
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    depth: int  # steps in flight: 1 synchronous, 2 one step ahead
    threads: int
    load_format: str
    block_size: int
    notes: list[str]  # one line each: what was decided, and why
