"""Tool-call dialects, one a file."""
