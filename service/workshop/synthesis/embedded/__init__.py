"""Rows for the embedded model (`synthesize embedded`): from people's questions and passages' facts.

`sets` reads the public sets, `reading`, `steps` and `routing` draw rows of the roles, each in the
very prompt that serves it, and `mixture` draws all of them by their share of the tokens.
"""
