#!/usr/bin/env bash
# Every client library against a running server, in one run: scripts/clients.sh [pytest arguments].
# Makes an environment of its own in $VENV (.venv-clients), for these libraries pin each other's versions; without
# torch, since the model behind the server is a script. The npm packages go there too, if there is a node.
set -eu
cd "$(dirname "$0")/.."
mkdir -p "${VENV:=.venv-clients}"
venv=$(cd "$VENV" && pwd)
if ! cmp -s requirements/clients.txt "$venv/clients.txt"; then
  "$(scripts/find-python.sh)" -m venv "$venv"
  # Octavo's own libraries by name alone: whatever version the clients leave room for.
  grep -vE '^(torch|hatchling|editables|nanobind)==' requirements/demo.txt | sed 's/==[^;]*//' > "$venv/demo.txt"
  grep -E '^(pytest|pytest-asyncio|pytest-timeout)==' requirements/test.txt > "$venv/test.txt"
  "$venv/bin/python" -m pip install -qq --disable-pip-version-check --no-input \
    -r "$venv/demo.txt" -r "$venv/test.txt" -r requirements/clients.txt
  cp requirements/clients.txt "$venv/clients.txt"
fi
if command -v npm > /dev/null && ! cmp -s tests/clients/node/package.json "$venv/node/package.json"; then
  mkdir -p "$venv/node"
  (cp tests/clients/node/package.json "$venv/node" && cd "$venv/node" && npm install --silent --no-audit --no-fund)
fi
export NODE_MODULES=$venv/node/node_modules PATH=$venv/bin:$PATH PYTHONPATH=$PWD OMP_NUM_THREADS=1
exec "$venv/bin/python" -m pytest tests/clients "$@"
