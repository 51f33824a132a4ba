"""Where compiled kernels are kept between starts: in our own cache folder, unless Triton was told another.

Triton's own choice is the home folder, which a service or a container often cannot write, or loses.
"""

import logging
import os
import tempfile
from pathlib import Path

from octavo.base.places import cache_folder

log = logging.getLogger(__name__)

TOLD = ("TRITON_CACHE_DIR", "TRITON_HOME")


def keep() -> None:
    """Tell Triton, in this process's environment. To be called before the first kernel."""
    if any(os.environ.get(name) for name in TOLD):
        return
    folder = cache_folder() / "triton"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        log.warning("kernels are compiled anew at each start: %s", error)
        folder = Path(tempfile.mkdtemp(prefix="octavo-triton-"))
    os.environ["TRITON_CACHE_DIR"] = str(folder)
