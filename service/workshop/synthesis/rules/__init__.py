"""The teacher that needs no model: facts found in passages by patterns (`--teacher rules`)."""
