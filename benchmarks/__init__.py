"""Benchmarks of Afterrun against bare parts: `python -m benchmarks NAME [FILE…] [--json]`.

Each benchmark is a module here with `run(argv) -> dict`: it measures the product's own paths against a baseline within
one run, on scratch databases and copies, and cleans up after itself.
"""
