"""What the report shows: one figure a module, drawn on matplotlib axes without pyplot.

Importing this package imports no matplotlib; its modules do.
"""
