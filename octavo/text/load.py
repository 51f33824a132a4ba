"""The text side of a model, from its files: tokenizer, chat template, recommended sampling values."""

from collections.abc import Callable
from dataclasses import dataclass

from octavo.base.config import ModelConfig
from octavo.base.errors import ConfigError
from octavo.base.wire import Vocabulary
from octavo.text.chat import ChatTemplate, load_chat
from octavo.text.defaults import Defaults, read_defaults
from octavo.text.parse.speech import Speech
from octavo.text.request import Limits, TextProcessor
from octavo.text.structured import vocabulary_of
from octavo.text.tokenizer import Tokenizer, TokenizerSource, load_tokenizer


@dataclass(frozen=True)
class TextSide:
    """What can be loaded while the weights load, before the engine says what it can take."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    defaults: Defaults
    seed: int
    speech: Speech  # how the model marks thoughts and calls
    vocabulary: Callable[[], Vocabulary] | None  # as in TextProcessor

    def processor(self, limits: Limits) -> TextProcessor:
        """The front door, for an engine with these limits."""
        return TextProcessor(
            self.tokenizer,
            self.template,
            limits,
            self.defaults,
            seed=self.seed,
            speech=self.speech,
            vocabulary=self.vocabulary,
        )


def load_text(
    files: TokenizerSource, config: ModelConfig, *, tool_parser: str = "auto", reasoning_parser: str = "auto"
) -> TextSide:
    """The parsers are names of text/parse/registry.py, ``auto`` or ``none``.

    Raises ModelFileError for a tokenizer that cannot be read, ConfigError for a template that does not compile and for
    an unknown parser.
    """
    tokenizer = load_tokenizer(files)
    try:
        template = load_chat(tokenizer)
    except ConfigError as error:
        raise (ConfigError(f"{config.chat_template}: {error}") if config.chat_template else error) from None
    defaults = read_defaults(files.generation_config) if config.generation_config == "auto" else Defaults()
    _ = tokenizer.longest_token  # worked out now and not in the first request
    source = "\n".join(tokenizer.templates.values())
    speech = Speech(tokenizer, source, tool_parser=tool_parser, reasoning_parser=reasoning_parser)
    return TextSide(tokenizer, template, defaults, config.seed, speech, vocabulary_of(tokenizer))
