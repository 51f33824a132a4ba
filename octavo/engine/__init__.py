"""The engine: core loop, assembly, and the client that reaches it."""
