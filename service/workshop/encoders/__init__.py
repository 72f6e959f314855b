"""Training of EfficientRAG's labeler and filter: rows, network, recipes, scores, export."""
