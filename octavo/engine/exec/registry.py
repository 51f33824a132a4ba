"""The executors by name. Each is called with (files, resolved, config) and obeys exec/base.py's protocol."""

from octavo.base.registry import Registry

EXECUTORS = Registry(
    "executor",
    {
        "inline": "octavo.engine.exec.inline:InlineExecutor",
    },
)
