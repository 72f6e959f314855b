"""What engines in the process share: calls, rows of a batch, constraints; numpy, no network."""
