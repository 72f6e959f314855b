"""The small encoders: EfficientRAG's labeler and filter, and the classifier of routes."""
