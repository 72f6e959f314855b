"""Free-text readers for the outputs of HANRAG's roles (METHODS.md §1.2, §1.3).

They read free output, and check output that was generated under constraints (METHODS.md §6 #4).
They are pure: any text gives a result or None, never an exception. Reasoning is ignored. A result
that would be a guess is None, so that the caller takes the method's safe choice.
"""
