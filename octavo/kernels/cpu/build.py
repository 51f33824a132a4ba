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
    cxx = compiler()
    if cxx is None:
        raise BuildError("no C++ compiler was found (c++, g++ or clang++, or set CXX)")
    binding, include = _nanobind()
    jobs: list[tuple[Path, list[str]]] = [(SOURCES / name, []) for name in PLAIN]
    known = ISA_FLAGS.get(machine(), {})
    jobs += [(SOURCES / name, flags) for name, flags in known.items()]
    jobs += [(SOURCES / "module.cpp", include), (binding, [*include, "-DNDEBUG", "-fno-strict-aliasing", "-Os"])]
    missing = [
        f"-DOCTAVO_{kind}" for kind in ("AVX512", "AVX2", "AVX2VNNI", "NEON") if f"isa_{kind.lower()}.cpp" in known
    ]
    with tempfile.TemporaryDirectory() as scratch:
        command = [*shlex.split(cxx), *COMMON, *missing, *extra]

        def compile_one(job: tuple[Path, list[str]]) -> str:
            source, flags = job
            target = str(Path(scratch) / f"{source.stem}.o")
            _run([*command, *flags, "-c", str(source), "-o", target])
            return target

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            objects = list(pool.map(compile_one, jobs))
        out = folder / library_name()
        shared = ["-shared"] if sys.platform != "darwin" else ["-bundle", "-undefined", "dynamic_lookup"]
        _run([*command, *shared, *objects, "-o", str(out)])
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
