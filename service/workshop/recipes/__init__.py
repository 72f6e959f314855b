"""The recipes of `revelator train` and their shared parts. `recipe.py` defines the contract."""
