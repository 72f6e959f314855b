"""The service under load, on stub engines of stated speed: `python -m tests.load`."""
