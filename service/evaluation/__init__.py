"""`revelator evaluate` asks questions with gold answers, writes rows, and prints a table.

METHODS.md §1.6, §6 #2 and #13 define the scores.
"""
