"""A tensor times a factor on the device."""
