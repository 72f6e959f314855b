"""What the methods share that draft a chain of thought and search where the draft is in doubt.

DRAGIN uses it; a method such as FLARE is a loop of its own over the same parts: the prompt
(`layout`), the text that is written (`chain`), the engine calls (`calls`), the state of a question
(`run`), and the steps (`steps`).
"""
