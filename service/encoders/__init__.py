"""EfficientRAG's labeler and filter: which passages go on, and the words of the next query."""
