"""The CPU's fast path: one C++ call runs all layers of a step, with the GIL released.

kernels/ has the sources, build compiles them on this machine, library binds them, weights packs a checkpoint
for them, and model is the api.Model that the runner drives. Nothing is compiled or loaded at import.
"""
