"""The constructs of the sdy dialect, one file each: planned, written and read back from the output alone."""
