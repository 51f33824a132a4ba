"""What every engine imports, for a process that has time before it is told which one it will be."""

from octavo.platform.lean_torch import import_torch

import_torch()

import octavo.engine.assemble  # noqa: E402
import octavo.models.decoder  # noqa: E402
import octavo.weights.load  # noqa: E402
import octavo.weights.source  # noqa: E402
import octavo.worker.assemble  # noqa: E402
import octavo.worker.worker  # noqa: E402, F401
