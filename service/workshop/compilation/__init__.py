"""From a folder of float weights to the folder that the embedded engine serves."""
