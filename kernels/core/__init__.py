"""What all operations share: which implementation runs, registration with torch, launches and their table."""
