"""What a run leaves behind: the files of a result directory, written and read through one schema."""
