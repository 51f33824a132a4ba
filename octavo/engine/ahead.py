"""What every engine imports, for a process that has time before it is told which one it will be."""

import torch  # noqa: F401

import octavo.engine.assemble
import octavo.models.decoder
import octavo.weights.load
import octavo.weights.source
import octavo.worker.assemble
import octavo.worker.worker  # noqa: F401
