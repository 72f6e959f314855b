"""`revelator train`: the recipes, and what they share. `recipe.py` defines the contract."""
