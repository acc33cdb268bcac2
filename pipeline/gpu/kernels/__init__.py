"""Ops in Triton: a file is a kernel, its launcher with shape checks, and its contract.

Importing a module of this package that has a kernel imports triton, which decides at that moment whether
kernels are compiled or interpreted: see kernels.interpreter. An index into a cache is int64 from the block
id on.
"""
