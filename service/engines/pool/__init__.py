"""A pool of workers behind one engine name."""
