"""An attack on real server processes on embedded stores, repeated by seeds; see `__main__.py`."""
