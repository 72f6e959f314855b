"""The papers' data synthesis: pipelines as pure generators, and the driver that calls a teacher."""
