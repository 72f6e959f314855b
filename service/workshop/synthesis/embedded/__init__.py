"""Training rows for the embedded model (`synthesize embedded`), from questions of people and from
facts in passages.

`sets` reads the public datasets. `reading`, `steps`, `routes`, `dialogues` and `drafts` draw rows
of the roles, each with the prompt that is used when serving. `mixture` draws from all of them in
fixed proportions.
"""
