"""Numbers, command lines and files, for every part of the analysis. Standard library only."""
