"""Results that a notebook shows as a terminal does. Standard library only."""

from __future__ import annotations

import html


class Preformatted:
    """A result whose `str` is several lines, which a notebook shows as they are."""

    def _repr_html_(self) -> str:
        """Return the lines for a notebook."""
        return f"<pre>{html.escape(str(self))}</pre>"
