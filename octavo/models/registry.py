"""Model families by the architecture name that a config.json gives. No torch."""

from collections.abc import Callable, Mapping
from typing import Any

from octavo.base.errors import ConfigError
from octavo.base.registry import Registry
from octavo.models.arch import Architecture
from octavo.models.reading import Config

Reader = Callable[[Config], Architecture]

MODELS = Registry(
    "model",
    {
        "LlamaForCausalLM": "octavo.models.llama:read",
        "MistralForCausalLM": "octavo.models.mistral:read",
        "Qwen2ForCausalLM": "octavo.models.qwen2:read",
        "Qwen3ForCausalLM": "octavo.models.qwen3:read",
        "Gemma2ForCausalLM": "octavo.models.gemma2:read",
        "Gemma3ForCausalLM": "octavo.models.gemma3:read",
        "Gemma3ForConditionalGeneration": "octavo.models.gemma3:read_multimodal",
        "Phi3ForCausalLM": "octavo.models.phi3:read",
        "SmolLM3ForCausalLM": "octavo.models.smollm3:read",
        "GraniteForCausalLM": "octavo.models.granite:read",
        "Olmo2ForCausalLM": "octavo.models.olmo2:read",
        "Olmo3ForCausalLM": "octavo.models.olmo3:read",
    },
)


def read_architecture(config: Mapping[str, Any]) -> Architecture:
    """The architecture that a config.json describes.

    Raises UnknownName for a model that no family file reads, ConfigError for a value that cannot be.
    """
    view = Config(config)
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ConfigError("config.json: architectures must be a list with the model's class name")
    if view.has("quantization_config"):
        how = str(view.child("quantization_config").data.get("quant_method", "unknown"))[:40]
        raise ConfigError(
            f"config.json: {how} quantized checkpoints are not supported; use the plain weights or a GGUF"
        )
    known = [name for name in names if name in MODELS]
    reader: Reader = MODELS.get(known[0] if known else names[0])
    return reader(view)
