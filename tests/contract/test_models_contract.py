"""Every entry of the model registry: a tiny case, parity, hostile configs, no torch at import."""

import subprocess
import sys

import pytest

from octavo.base.errors import ConfigError
from octavo.models.arch import Architecture
from octavo.models.registry import MODELS, read_architecture
from octavo.testing.parity import PagedModel, assert_close, prompt_tokens, reference_logprobs
from octavo.testing.tiny import CASES, tiny

pytestmark = pytest.mark.filterwarnings("ignore")
names = pytest.mark.parametrize("name", list(MODELS))


def case_of(architecture: str) -> str:
    cases = [name for name, case in CASES.items() if case.architecture == architecture]
    assert cases, f"{architecture} is registered, but octavo/testing/tiny.py has no case for it"
    return cases[0]


@names
def test_a_tiny_checkpoint_gives_transformers_results(name):
    model = tiny(case_of(name))
    tokens = prompt_tokens(17)
    paged = PagedModel(model)
    assert_close(paged.prefill(paged.sequence(tokens), chunk=5), reference_logprobs(model, tokens), name)


@names
def test_facts_agree_with_the_checkpoint(name):
    model = tiny(case_of(name))
    arch = read_architecture(model.config)
    text = model.config.get("text_config") or model.config
    assert len(arch.layers) == text["num_hidden_layers"]
    assert arch.vocab_size == text["vocab_size"]
    assert len(arch.kv_specs()) == len(arch.layers)
    assert arch.dtype == "float32"
    assert arch.eos_token_ids == (2,)
    assert 8 * arch.num_parameters() > sum(p.numel() for p in PagedModel(model).decoder.parameters())


HOSTILE = [-1, 0, 1.5, "x", True, [], {}, [1, "a"], 2**70, float("nan"), float("inf"), -1e300]


@names
def test_a_hostile_value_is_refused_or_harmless(name):
    """Whatever stands under whatever key: an Architecture or a ConfigError of one line, never anything else."""
    config = tiny(case_of(name)).config
    for key in [*config, "rope_scaling", "rope_parameters", "layer_types", "text_config", "sliding_window"]:
        for value in HOSTILE:
            outcome = outcome_of({**config, key: value})
            assert isinstance(outcome, Architecture) or ("\n" not in outcome and len(outcome) < 1000)


def outcome_of(config):
    try:
        return read_architecture(config)
    except ConfigError as error:
        return str(error)


# Published Gemma 3 files leave sizes out; there every one has a default.
@pytest.mark.parametrize("name", [name for name in MODELS if not name.startswith("Gemma3")])
def test_missing_sizes_are_named(name):
    config = dict(tiny(case_of(name)).config)
    del config["hidden_size"]
    with pytest.raises(ConfigError, match="hidden_size is missing"):
        read_architecture(config)


def test_readers_do_not_import_torch():
    code = (
        "import sys\n"
        "from octavo.models.registry import MODELS\n"
        "[MODELS.get(name) for name in MODELS]\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
