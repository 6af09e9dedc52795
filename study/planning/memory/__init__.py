"""The estimate of `python -m study plan memory`: what each GPU holds, by component, and whether that fits."""
