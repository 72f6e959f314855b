"""`revelator evaluate`: gold questions in, rows and a table out (methods §1.6, §6 #2 and #13)."""
