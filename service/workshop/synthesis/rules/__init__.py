"""The teacher `rules`, which needs no model: it finds facts in passages by patterns (`--teacher
rules`)."""
