"""Products of rows with the matrix of their group."""
