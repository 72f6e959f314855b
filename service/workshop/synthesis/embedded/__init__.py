"""Training rows for the embedded model (`synthesize embedded`), from people's questions and from
facts in passages.

`sets` reads the public datasets. `reading`, `steps`, `routes`, `dialogues` and `drafts` draw rows
for the roles, each with the prompt that is used when serving. `mixture` draws from all of them in
fixed proportions.
"""
