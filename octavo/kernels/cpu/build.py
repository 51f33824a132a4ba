"""Compiles the native kernels into this folder: ``python -m octavo.kernels.cpu.build``.

The package's build (hatch_build.py) calls `build` too. It runs without the rest of Octavo: only the standard library
and nanobind's sources are needed, and a C++ compiler. Each instruction set is one file with flags of its own;
which one runs is decided by the processor at run time, so the result works on any machine of its kind.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCES = Path(__file__).parent / "csrc"
COMMON = ["-std=c++17", "-O3", "-fPIC", "-fno-math-errno", "-ffp-contract=off", "-fvisibility=hidden", "-pthread"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
ISA_FLAGS = {
    "x86_64": {
        "isa_avx512.cpp": [*AVX2, "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni"],
        "isa_avx2vnni.cpp": [*AVX2, "-mavxvnni"],
        "isa_avx2.cpp": AVX2,
    },
    "aarch64": {"isa_neon.cpp": ["-march=armv8.2-a+dotprod+fp16"]},
}
PLAIN_FLAGS = ["-O1"]  # of isa_plain.cpp: its loops take minutes to compile otherwise, and nearly no machine runs them
PLAIN = ["absent.cpp", "cpuid.cpp", "pool.cpp", "pack.cpp", "decoder.cpp", "isa_plain.cpp"]


class BuildError(Exception):
    """No compiler, no nanobind, or the compiler failed; the text says which."""


def compiler() -> str | None:
    """The C++ compiler: $CXX, or the first found of the usual names."""
    named = os.environ.get("CXX")
    if named:
        return named
    return next((path for name in ("c++", "g++", "clang++") if (path := shutil.which(name))), None)


def machine() -> str:
    """x86_64, aarch64 or other."""
    name = platform.machine().lower()
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(name, name)


def library_name() -> str:
    return f"_native{sysconfig.get_config_var('EXT_SUFFIX') or '.so'}"


def up_to_date(folder: Path) -> Path | None:
    """The library in `folder`, if it is younger than all sources."""
    library = folder / library_name()
    sources = [Path(__file__), *SOURCES.iterdir()]
    fresh = library.is_file() and library.stat().st_mtime > max(source.stat().st_mtime for source in sources)
    return library if fresh else None


def build(folder: Path, extra: Sequence[str] = ()) -> Path:
    """Compile everything and link it into `folder`. Raises BuildError."""
    binding, include = _nanobind()
    jobs = _kernel_jobs(machine())
    jobs += [(SOURCES / "module.cpp", include), (binding, [*include, "-DNDEBUG", "-fno-strict-aliasing", "-Os"])]
    shared = ["-shared"] if sys.platform != "darwin" else ["-bundle", "-undefined", "dynamic_lookup"]
    return _compile(_compiler(), jobs, [*_found(machine()), *extra], shared, folder / library_name())


def build_check(out: Path, extra: Sequence[str] = (), cxx: str | None = None, target: str | None = None) -> Path:
    """Compile the kernels' own check (csrc/check.cpp), a program without Python, for sanitizers and emulators.

    `cxx` and `target` name a cross compiler and its machine. Raises BuildError.
    """
    target = target or machine()
    jobs = [*_kernel_jobs(target), (SOURCES / "check.cpp", [])]
    return _compile(cxx or _compiler(), jobs, [*_found(target), *extra], list(extra), out)


def _compiler() -> str:
    cxx = compiler()
    if cxx is None:
        raise BuildError("no C++ compiler was found (c++, g++ or clang++, or set CXX)")
    return cxx


def _kernel_jobs(target: str) -> list[tuple[Path, list[str]]]:
    """Sources with their own flags."""
    known = ISA_FLAGS.get(target, {})
    own = {"isa_plain.cpp": PLAIN_FLAGS, **known}
    return [(SOURCES / name, own.get(name, [])) for name in (*known, *PLAIN)]


def _found(target: str) -> list[str]:
    """Definitions that say which instruction sets take part."""
    return [f"-DOCTAVO_{Path(name).stem.removeprefix('isa_').upper()}" for name in ISA_FLAGS.get(target, {})]


def _compile(
    cxx: str, jobs: list[tuple[Path, list[str]]], flags: Sequence[str], link: Sequence[str], out: Path
) -> Path:
    """Each source to an object, several at a time, and all of them to `out`."""
    command = [*shlex.split(cxx), *COMMON, *flags]
    with tempfile.TemporaryDirectory() as scratch:

        def compile_one(job: tuple[Path, list[str]]) -> str:
            source, own = job
            target = str(Path(scratch) / f"{source.stem}.o")
            _run([*command, *own, "-c", str(source), "-o", target])
            return target

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = list(pool.map(compile_one, jobs))
        _run([*shlex.split(cxx), *link, *objects, "-pthread", "-o", str(out)])
    return out


def _nanobind() -> tuple[Path, list[str]]:
    """nanobind's one source file, and the flags that find all headers."""
    try:
        import nanobind
    except ImportError:
        raise BuildError("nanobind is not installed; pip install nanobind") from None
    root = Path(nanobind.include_dir()).parent
    headers = [root / "include", root / "ext" / "robin_map" / "include", Path(sysconfig.get_path("include"))]
    return root / "src" / "nb_combined.cpp", [f"-I{path}" for path in headers]


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or done.stderr.splitlines()[-3:]
        raise BuildError(f"{command[0]} failed: {'; '.join(lines[:3])}")


def main() -> int:
    """Build into the package's own folder."""
    try:
        print(f"built {build(Path(__file__).parent)}")
    except BuildError as error:
        print(f"the CPU kernels were not built: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
