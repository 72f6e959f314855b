"""`revelator evaluate`: gold questions in, rows and a table out.

The scores: METHODS.md §1.6, §6 #2 and #13.
"""
