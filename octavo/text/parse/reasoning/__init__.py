"""Reasoning dialects: how a model marks off what it thinks."""
