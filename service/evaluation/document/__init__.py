"""Write the report of an evaluation, `DIR/report.html` and `DIR/report.md`, from its rows."""
