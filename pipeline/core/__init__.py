"""The logic of the server without I/O: no asyncio, no torch, no clock, no logging."""
