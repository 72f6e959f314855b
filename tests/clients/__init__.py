"""Clients that nobody here wrote, as real processes; `python -m tests.clients` prints the table."""
