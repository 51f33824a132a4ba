"""What of a machine troubles servers beside its libraries: driver, containers' limits, ports, compiler, clock, TLS."""

import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from octavo.base.human import format_bytes
from octavo.cli.own_server import port_in_use

GIB = 1 << 30
SMALL_DISK = 5 * GIB
BUILT = 1_735_689_600  # 2025-01-01: a clock before it is wrong, and every certificate is "not yet valid"
DEFAULT_PORT = 8000
DRIVER_FILES = ("/dev/nvidiactl", "/proc/driver/nvidia/version")
CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy")


@dataclass(slots=True)
class Section:
    """Facts in order, and two kinds of trouble, each said with what to do about it.

    `failures`: no server starts here, or none can use the GPU that is here. `warnings`: it works, but less well.
    """

    title: str
    facts: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def driver_section(root: Path = Path("/")) -> Section:
    """The GPU's driver: whether it can be reached from here, is as new as torch's CUDA, and who uses its memory."""
    section = Section("driver")
    present = any((root / name.lstrip("/")).exists() for name in DRIVER_FILES)
    told = _nvidia_smi()
    if told is None:
        section.facts["nvidia"] = "device files, but nvidia-smi does not answer" if present else "no GPU"
        if present:
            section.failures.append(
                "a GPU's device files are here but its driver does not answer: in a container start it with --gpus all "
                "and the NVIDIA container toolkit; on the machine load the module again or reboot"
            )
        return section
    driver, cuda = told
    section.facts["nvidia"] = f"driver {driver}, good for CUDA {'.'.join(map(str, cuda)) or '?'}"
    built = _torch_cuda()
    if built and cuda and built[0] > cuda[0]:
        section.failures.append(
            f"torch is built for CUDA {built[0]}.{built[1]}, the driver is good for {cuda[0]}.{cuda[1]}: "
            "install a newer driver, or a torch for an older CUDA"
        )
    others = _gpu_users()
    for pid, name, used in others:
        section.facts[f"process {pid}"] = f"{name}, {used} MiB"
    if others:
        section.warnings.append(
            "other processes hold GPU memory: end them, or leave room with --gpu-memory-utilization"
        )
    return section


def container_section(root: Path = Path("/")) -> Section:
    """What a container may take, where that is less than the machine has."""
    from octavo.platform.limits import core_limit, memory_limits

    section = Section("container")
    machine = int(psutil.virtual_memory().total)
    free, total = memory_limits(root)
    cores, all_cores = core_limit(root), os.cpu_count() or 1
    if total < machine:
        section.facts["memory"] = f"{format_bytes(total)} of {format_bytes(machine)}, {format_bytes(free)} free"
        if total < 4 * GIB:
            section.warnings.append(
                f"the container may take {format_bytes(total)} of memory: the system ends what takes more without a "
                "word; raise its limit (docker --memory, Kubernetes resources.limits.memory)"
            )
    if cores < all_cores:
        section.facts["cores"] = f"{cores} of {all_cores}"
        if cores < 2:
            section.warnings.append(
                "one core for API and engine together: streams will stutter; give the container two at least"
            )
    swap = psutil.swap_memory()
    if swap.total and swap.used > swap.total // 2 and swap.used > GIB:
        section.warnings.append(f"{format_bytes(swap.used)} are swapped out: the machine lacks memory, all is slow")
    return section


def network_section(port: int = DEFAULT_PORT) -> Section:
    """The port a server would take, and what stands between it and the model hub."""
    section = Section("network")
    used = port_in_use(port)
    section.facts[f"port {port}"] = f"taken by {_listener(port)}" if used else "free"
    if used:
        section.failures.append(
            f"port {port} is taken by {_listener(port)}: end it, or give octavo serve another --port"
        )
    proxies = [name for name in PROXY_VARIABLES if os.environ.get(name)]
    if proxies:
        section.facts["proxy"] = ", ".join(proxies)
        if "127.0.0.1" not in (os.environ.get("NO_PROXY") or os.environ.get("no_proxy") or ""):
            section.warnings.append(
                "a proxy is set: set NO_PROXY=127.0.0.1,localhost too, or clients ask it for your server"
            )
    for name in CERTIFICATE_VARIABLES:
        path = os.environ.get(name)
        if path and not Path(path).exists():
            section.warnings.append(f"{name} names {path}, which is not there: no download will work; unset or mend it")
    return section


def build_section() -> Section:
    """What compiles: the CPU's native kernels (once, at installation) and Triton's stubs (at the first start)."""
    from octavo.kernels.cpu import build

    section = Section("compiler")
    found = build.compiler()
    section.facts["c++"] = found or "none"
    library = Path(build.__file__).parent / build.library_name()
    section.facts["native kernels"] = "built" if library.is_file() else "not built"
    if not library.is_file():
        how = "python -m octavo.kernels.cpu.build" if found else "install g++, then python -m octavo.kernels.cpu.build"
        section.warnings.append(f"the native CPU kernels are not built, a CPU runs many times slower: {how}")
    if _torch_cuda():
        headers = Path(sysconfig.get_paths()["include"], "Python.h")
        if not shutil.which("cc") and not shutil.which("gcc") and not os.environ.get("CC"):
            section.warnings.append("Triton needs a C compiler at the first start: install gcc")
        elif not headers.is_file():
            section.warnings.append("Triton needs Python's headers at the first start: install python3-dev")
    return section


def clock_section(folders: Iterable[Path]) -> Section:
    """The clock, and room on the disks that `folders` lie on."""
    section = Section("clock and disk")
    now = time.time()
    section.facts["clock"] = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < BUILT:
        section.warnings.append(
            "the clock is years behind: certificates will be refused; set it (timedatectl set-ntp true)"
        )
    seen: set[int] = set()
    for folder in folders:
        folder = existing(folder)
        device = folder.stat().st_dev
        if device in seen:
            continue
        seen.add(device)
        free = shutil.disk_usage(folder).free
        section.facts[str(folder)] = f"{format_bytes(free)} free"
        if free < SMALL_DISK:
            section.warnings.append(
                f"{format_bytes(free)} are left on the disk of {folder}: a download will fail half-way; "
                "free some, or move the caches with HF_HOME and XDG_CACHE_HOME"
            )
        nodes = os.statvfs(folder)
        if nodes.f_files and nodes.f_favail < 1000:
            section.warnings.append(f"the disk of {folder} has no inodes left: remove small files")
    return section


def existing(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _nvidia_smi() -> tuple[str, tuple[int, ...]] | None:
    """Driver version, and the CUDA version it is good for; None where nvidia-smi is missing or fails."""
    try:
        done = subprocess.run(["nvidia-smi"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    driver = re.search(r"Driver Version:\s*([\d.]+)", done.stdout)
    if done.returncode != 0 or driver is None:
        return None
    cuda = re.search(r"CUDA Version:\s*(\d+)\.(\d+)", done.stdout)
    return driver[1], tuple(map(int, cuda.groups())) if cuda else ()


def _gpu_users() -> list[tuple[str, str, str]]:
    """Process id, name and MiB of each process that holds GPU memory."""
    query = ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    rows = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
    return [(row[0], row[1], row[2]) for row in rows if len(row) == 3 and row[0].isdigit()]


def _torch_cuda() -> tuple[int, int] | None:
    """The CUDA version torch is built for, without importing it where that can be avoided."""
    try:
        from torch.version import cuda
    except Exception:
        return None
    match = re.match(r"(\d+)\.(\d+)", cuda or "")
    return (int(match[1]), int(match[2])) if match else None


def _listener(port: int) -> str:
    """Who listens there, as far as this user may know."""
    try:
        for each in psutil.net_connections("tcp"):
            if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port and each.pid:
                return f"{psutil.Process(each.pid).name()} (process {each.pid})"
    except psutil.Error:
        pass
    return "another program"
