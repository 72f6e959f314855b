"""Stands where vLLM would be found; `entrypoints/openai/api_server.py` is all there is of it."""
