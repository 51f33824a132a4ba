#!/usr/bin/env bash
# Prints a Python of version 3.11 or 3.12. $PYTHON, if set, is the only candidate.
set -u
for candidate in ${PYTHON:-python3 python3.12 python3.11 python}; do
  # A name on the path may be a shim with nothing behind it, so ask it.
  if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null; then
    command -v "$candidate"
    exit 0
  fi
done
echo "No Python 3.11 or 3.12 with venv found (tried: ${PYTHON:-python3 python3.12 python3.11 python})." \
  "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2
exit 1
