"""A byte-level BPE trained on a few lines, and a ChatML template with tools: a text side in a few milliseconds."""

from functools import cache

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from octavo.text.chat import load_chat
from octavo.text.request import Limits, TextProcessor
from octavo.text.tokenizer import Tokenizer

TEMPLATE = """{%- if tools %}<|im_start|>system
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}<|im_end|>
{% endif %}{%- if shout %}LOUD {% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% if not (loop.last and continue_final) %}<|im_end|>
{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

LINES = ["hello there, how are you today?", "once upon a time there was a server", "tell me more about it"] * 4


@cache
def tokenizer() -> Tokenizer:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, show_progress=False, special_tokens=special, initial_alphabet=alphabet
    )
    backend.train_from_iterator(LINES, trainer)
    end = backend.token_to_id("<|im_end|>")
    return Tokenizer(backend, eos_ids=[end], templates={"default": TEMPLATE})


def text_processor(max_model_len: int) -> TextProcessor:
    own = tokenizer()
    template = load_chat(own)
    return TextProcessor(own, template, Limits(max_model_len, own.vocab_size))
