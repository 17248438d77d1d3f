"""Loads assay's pytest plugin for every test of this repository."""

import gc
import os

# The goldens are small float64 products: threads inside one only get in the way of the other test processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

pytest_plugins = ["assay.pytest_plugin"]

# Tracing makes millions of small objects that live long: looking through all of them again and again is 5 % of a run.
gc.set_threshold(100_000, 50, 100)
