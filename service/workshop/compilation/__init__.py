"""Convert a folder of float weights into the folder that the embedded engine serves."""
