"""What the platform says of the machine: cgroup limits of both versions, nested and absent; facts; the choice."""

import os
import subprocess
import sys

import psutil
import pytest
import torch

from octavo.base.errors import ConfigError, UnknownName
from octavo.platform.cpu import CpuPlatform
from octavo.platform.limits import core_limit, memory_limits
from octavo.platform.registry import PLATFORMS, select

MIB = 1 << 20


def tree(root, cgroup, files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(cgroup)
    (root / "sys/fs/cgroup").mkdir(parents=True)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("cgroup", "files", "limits"),
    [
        (  # v2: the tightest level counts
            "0::/a/b\n",
            {
                "a/memory.max": f"{64 * MIB}\n",
                "a/memory.current": f"{40 * MIB}\n",
                "a/memory.stat": f"anon 1\ninactive_file {10 * MIB}\n",
                "a/b/memory.max": "max\n",
                "a/b/memory.current": f"{30 * MIB}\n",
            },
            (34 * MIB, 64 * MIB),
        ),
        (  # v1
            "5:cpu,cpuacct:/x\n4:memory:/x\n0::/\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712\n",
                "memory/x/memory.limit_in_bytes": f"{32 * MIB}\n",
                "memory/x/memory.usage_in_bytes": f"{20 * MIB}\n",
                "memory/x/memory.stat": f"total_inactive_file {4 * MIB}\n",
            },
            (16 * MIB, 32 * MIB),
        ),
        (  # a container whose path lies outside
            "0::/../../docker/77\n",
            {"memory.max": f"{16 * MIB}", "memory.current": f"{20 * MIB}"},
            (0, 16 * MIB),
        ),
    ],
)
def test_memory_that_cgroups_leave(tmp_path, cgroup, files, limits):
    assert memory_limits(tree(tmp_path, cgroup, files)) == limits


def test_without_limits_the_machine_counts(tmp_path):
    available, total = memory_limits(tmp_path)
    assert total == psutil.virtual_memory().total
    assert 0 < available <= total
    assert core_limit(tmp_path) == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"a/cpu.max": "150000 100000\n"}, 2),
        ({"a/cpu.max": "50000 100000\n"}, 1),
        ({"a/cpu.max": "max 100000\n"}, 64),
        ({"cpu.max": "100000 100000\n", "a/cpu.max": "800000 100000\n"}, 1),
        ({"cpu/a/cpu.cfs_quota_us": "300000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 64),
        ({"a/cpu.max": "nonsense\n"}, 64),
    ],
)
def test_cores_of_a_quota(tmp_path, monkeypatch, files, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    root = tree(tmp_path, "3:cpuacct,cpu:/a\n0::/a\n", files)
    assert core_limit(root) == cores


def test_cpu_facts():
    facts = CpuPlatform().facts()
    assert facts.device == "cpu"
    assert facts.dtypes[0] == "float32"
    assert not facts.asynchronous
    assert 0 < facts.free_memory <= facts.total_memory
    assert facts.cores >= 1
    assert facts.name


def test_cpu_copies_are_copies():
    platform = CpuPlatform()
    host = platform.staging(4)
    device = platform.upload(host)
    host.fill_(7)
    assert device.tolist() == [0, 0, 0, 0]
    out = platform.download(device)
    device.fill_(3)
    assert out.tolist() == [0, 0, 0, 0]
    event = platform.event()
    event.synchronize()
    assert event.query()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("shape", [(3, 5, 2), (0, 4), ()])
def test_zeros_of_any_type_and_shape(dtype, shape):
    zeros = CpuPlatform().zeros(shape, dtype)
    assert zeros.shape == torch.zeros(shape).shape
    assert zeros.dtype == dtype
    assert zeros.count_nonzero() == 0
    zeros.fill_(1)


def test_a_large_zeroed_tensor_costs_nothing_until_it_is_touched():
    before = psutil.Process().memory_info().rss
    pool = CpuPlatform().zeros((1 << 28,), torch.float32)
    assert psutil.Process().memory_info().rss - before < 64 * MIB
    assert pool[-1] == 0


def test_choice():
    assert select("cpu").name == "cpu"
    assert select("auto").name == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(UnknownName, match="cuda"):
        select("cuda0")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_one_clear_line():
    with pytest.raises(ConfigError, match=r"device 'cuda' cannot be used") as caught:
        select("cuda")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(PLATFORMS))
def test_contract_of_every_platform(name):
    kind = PLATFORMS.get(name)
    if kind.missing():
        pytest.skip(kind.missing())
    platform = kind()
    platform.prepare(torch.get_num_threads())
    facts = platform.facts()
    assert facts.device == name
    assert facts.dtypes
    host = platform.staging(8)
    host.copy_(torch.arange(8))
    device = platform.upload(host)
    back = platform.download(device + 1)
    platform.event().synchronize()
    assert back.tolist() == list(range(1, 9))
    base = platform.start_peak()
    held = platform.zeros((1024, 1024), torch.float32)
    if platform.counts_memory:
        assert platform.peak() - base >= 4 * MIB
    assert held.sum() == 0
    free, total = platform.memory()
    assert 0 <= free <= total
    platform.release()


def test_what_the_plan_world_asks_of_platforms_imports_without_torch():
    code = "import sys, octavo.platform.registry, octavo.platform.base; print('torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"
