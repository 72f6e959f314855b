"""Training of EfficientRAG's labeler and filter: rows, network, trainer and scores, export."""
