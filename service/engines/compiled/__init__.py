"""The format of a compiled model: what its folder holds, and what its graph takes and gives."""
