"""Files that ship with the package: the trained small model."""
