#!/usr/bin/env bash
# Runs the tests: scripts/test.sh PYTHON [pytest arguments]. One process a core, each with one thread of its own.
set -eu
python=$1
shift
cores=$("$python" -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')
workers=$((cores < 8 ? cores : 8))
export OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
exec "$python" -m pytest -m "not slow and not gpu" -n "$workers" --dist loadfile "$@"
