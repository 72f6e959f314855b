"""The teacher that needs no model: facts found in passages by patterns (`--teacher rules`).

Each module is a pipeline's, with `begin(known)`, which gives a function that draws one outcome in
the pipeline's own rows. The generators are those of the embedded models' data.
"""
