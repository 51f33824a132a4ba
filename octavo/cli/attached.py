"""`octavo`, but it ends when its standard input closes: the way a child process follows its parent to the grave."""

import os
import signal
import threading

from octavo.cli.main import main


def _follow_parent() -> None:
    # os.read, not sys.stdin: a thread inside a buffered reader would break the interpreter's exit.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_follow_parent, daemon=True).start()
    raise SystemExit(main())
