"""Stageline: an LLM inference server built as a pipeline of asyncio actors."""

__version__ = "0.1.0"
