"""The suite of one GPU: every row of the speed targets from one command, each with its own time and failure."""
