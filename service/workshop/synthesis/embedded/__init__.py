"""Rows for the embedded model (`synthesize embedded`): from people's questions and passages' facts.

`sets` reads the public sets; `reading`, `steps`, `routes`, `dialogues` and `drafts` draw rows of
the roles, each in the very prompt that serves it; `mixture` draws all of them by their share.
"""
