"""What `fit.json` holds, as frozen values."""
