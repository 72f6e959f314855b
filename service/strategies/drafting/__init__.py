"""The parts shared by the methods that draft a chain of thought and search where the draft is in
doubt, or at every window of it.

DRAGIN, FLARE and the baselines of fixed lengths are loops over the same parts: the prompt
(`layout`), the text that is written (`chain`, `pieces`), the engine calls (`calls`), the state of a
question (`run`), and the steps (`steps`, `windows`).
"""
