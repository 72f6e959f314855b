"""Continuous batching, shared by the engines that run a model in this process."""
