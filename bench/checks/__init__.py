"""The parts of bench/gpu_check.py. A part is `run(bench)`, which yields rows as it has them."""
