"""The papers' data synthesis: pipelines as pure generators, and the driver of a teacher."""
