"""Triton implementations for GPUs."""
