"""Structured output: what a request's text must look like, and which token may come next. No torch."""
