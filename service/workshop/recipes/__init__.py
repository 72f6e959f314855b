"""`revelator train`: what all recipes share, and the recipes. `recipe.py` holds the contract."""
