import json
import math
import random

import pytest

from octavo.base.errors import ConfigError
from octavo.bench import hardware, report
from octavo.bench.stats import mean, percentile


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz", "intel-xeon-platinum-8481c"),
        ("AMD EPYC 9B14 96-Core Processor", "amd-epyc-9b14"),
        ("NVIDIA H200", "nvidia-h200"),
        ("???", "unknown"),
    ],
)
def test_slugs(name, slug):
    assert hardware.slug(name) == slug


def test_machine_names():
    base = {"cpu": "AMD EPYC", "cores": 2, "memory": 1, "available": 1, "system": ""}
    assert hardware.Machine(**base, isa=["avx512f", "avx2"], gpus=[]).slug == "cpu-amd-epyc-2c-avx512"
    assert hardware.Machine(**base, isa=["avx2"], gpus=[]).slug == "cpu-amd-epyc-2c-avx2"
    assert hardware.Machine(**base, isa=[], gpus=["NVIDIA H200"]).slug == "nvidia-h200"
    assert hardware.Machine(**base, isa=[], gpus=["NVIDIA H200"] * 4).slug == "nvidia-h200-x4"


def test_this_machine():
    here = hardware.machine()
    assert here.cores >= 1
    assert 0 < here.available <= here.memory
    assert here.slug == hardware.machine().slug


def test_driver_lines():
    gpu = hardware._gpu("NVIDIA H200, 143771, 143000, 9.0")
    assert gpu is not None
    assert (gpu.name, gpu.total_memory, gpu.capability) == ("NVIDIA H200", 143_771 << 20, (9, 0))
    assert hardware._gpu("No devices were found") is None


def test_percentiles_are_numpys():
    np = pytest.importorskip("numpy")
    rng = random.Random(0)
    for size in (1, 2, 3, 10, 101):
        values = [rng.random() for _ in range(size)]
        for percent in (0, 1, 50, 90, 99, 100):
            assert percentile(values, percent) == pytest.approx(float(np.percentile(values, percent)))
    assert math.isnan(percentile([], 50))
    assert math.isnan(mean([]))


def test_rows_and_files(tmp_path):
    waste = report.row("kv-waste", "KV waste", 1.23456789, "%", limit=4.0)
    assert (waste.value, waste.fraction) == (1.2346, 0.30864)
    path = report.write(tmp_path, "octavo bench a", [waste, report.row("x", "X", math.nan, "s")])
    assert path.parent.parent == tmp_path
    report.write(
        tmp_path, "octavo bench b", [report.row("kv-waste", "KV waste", 2.0, "%"), report.row("y", "Y", 1, "s")]
    )
    found = report.read(path)
    assert found.command == "octavo bench a && octavo bench b"
    assert [(entry.id, entry.value) for entry in found.rows] == [("kv-waste", 2.0), ("y", 1.0)]
    assert set(json.loads(path.read_text())) == {"machine", "date", "command", "rows"}
    assert found.machine["hardware"] == path.parent.name
    assert not list(tmp_path.rglob("*.part"))
    assert "KV waste" in report.table(found.rows)


def test_no_report(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(ConfigError, match="not a report"):
        report.read(tmp_path / "x.json")
