"""Commands. Importing this package costs milliseconds: no torch, no server."""
