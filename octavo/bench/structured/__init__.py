"""Structured output held against a real model: schemas, tool calls, hostile input, and what it costs."""
