"""Training of EfficientRAG's labeler and filter: rows, network, trainer, scores and export."""
