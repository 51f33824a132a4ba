"""What the API's process does of a start while the engine's own is busy."""

from types import SimpleNamespace

import pytest

from octavo.base.config import DeviceConfig, EngineConfig, ModelConfig, OctavoConfig
from octavo.serve import start


@pytest.mark.parametrize(("device", "gpu", "told"), [("auto", True, 1), ("auto", False, 0), ("cpu", True, 0)])
def test_beside_a_gpu_the_vocabulary_is_worked_out_while_the_weights_load(monkeypatch, device, gpu, told):
    calls = []
    side = SimpleNamespace(vocabulary=lambda: calls.append(1))
    monkeypatch.setattr(start, "load_text", lambda *_, **__: side)
    monkeypatch.setattr(start, "no_gpu", lambda: not gpu)
    config = OctavoConfig(engine=EngineConfig(model=ModelConfig(model="m"), device=DeviceConfig(device=device)))
    phases: dict[str, float] = {}
    assert start._load(config, None, phases) is side
    assert len(calls) == told
    assert list(phases) == ["tokenizer"]
