"""Revelator: answers questions that one search cannot, over the users' own passages."""

__version__ = "0.1.0"
