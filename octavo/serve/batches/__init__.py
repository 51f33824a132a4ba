"""Many requests from a file, answered when nobody else needs the engine."""
