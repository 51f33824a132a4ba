"""Every speed target's row on one GPU, in one command of at most nine minutes.

    python benchmarks/gpu.py [--out FILE] [--only T1,T5] [--budget 540] [--quick]
    python benchmarks/gpu.py --shapes tiny --device cpu      # a dry run, without meaning

Results go to benchmarks/results/<machine>/<date>.json after each figure; `make docs` makes the page from them.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE.parent), os.environ.get("PYTHONPATH")]))

from octavo.bench.gpu.drive import main  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(main(HERE))
