"""Executors, one a way of running workers."""
