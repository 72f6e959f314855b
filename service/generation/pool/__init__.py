"""Many workers behind one name."""
