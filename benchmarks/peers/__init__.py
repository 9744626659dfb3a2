"""Training steps of other toolkits and of ours, for `benchmarks/training.py`."""
