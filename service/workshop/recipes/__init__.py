"""The recipes of `revelator train` and their shared parts. `run.py` defines the contract."""
