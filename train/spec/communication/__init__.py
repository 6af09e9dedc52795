"""Communication of a step: volumes by formula, times by the alpha-beta model."""
