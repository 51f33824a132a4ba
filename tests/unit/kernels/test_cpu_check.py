"""The kernels' own check program, under sanitizers and, for NEON, under an emulator."""

import shutil
import subprocess

import pytest

from octavo.kernels.cpu.build import BuildError, build_check, compiler

# Loops are left as loops, and three widths of a tile stand for all: it compiles in a fraction of the time.
SANITIZE = ["-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SANITIZE += ["-DOCTAVO_UNROLL=", "-DOCTAVO_FEW_TILES"]


def run(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-2000:]
    assert "checked" in done.stdout
    assert "\n0 failures" in done.stdout
    return done.stdout


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.timeout(600)
def test_sanitizers_find_nothing(tmp_path):
    try:
        program = build_check(tmp_path / "check", SANITIZE)
    except BuildError as error:
        if "sanitize" in str(error) or "asan" in str(error):
            pytest.skip(f"no sanitizers: {error}")
        raise
    run([str(program)])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("aarch64-linux-gnu-g++") is None or shutil.which("qemu-aarch64") is None,
    reason="no cross compiler or emulator for Arm",
)
def test_neon_under_emulation(tmp_path):
    program = build_check(tmp_path / "check", ["-static"], "aarch64-linux-gnu-g++", "aarch64")
    assert "neon checked" in run(["qemu-aarch64", "-cpu", "max", str(program)])
