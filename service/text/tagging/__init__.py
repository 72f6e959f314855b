"""Content words and sentences, by whatever is installed: one file each."""
