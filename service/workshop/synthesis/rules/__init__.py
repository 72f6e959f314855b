"""The teacher `rules` (`--teacher rules`), which finds facts in passages by patterns and needs no
model."""
