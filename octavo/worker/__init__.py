"""The process beside the device: runner, request table, batch, sampler."""
