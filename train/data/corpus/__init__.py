"""Raw text to a prepared corpus: what runs once, offline."""
