"""Implementations of gpu.api.Ops."""
