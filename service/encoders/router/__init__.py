"""The learned router: chooses the route of a question without calling a language model."""
