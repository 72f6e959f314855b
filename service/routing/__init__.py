"""A learned router: a question to its route, without a call to a language model."""
