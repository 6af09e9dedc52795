"""Keys and values of the tokens so far, for generation: a new token attends to them without computing them again."""

from __future__ import annotations

from torch import Tensor


class KVCache:
    """Keys and values of one block, contiguous, with room for `capacity` positions."""

    def __init__(self, capacity: int) -> None:
        self._capacity, self.length = capacity, 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add those of new positions, (batch, new, kv_heads, head_dim); return those of all positions so far.

        ValueError where there is no room for them.
        """
        start, stop = self.length, self.length + keys.shape[1]
        if stop > self._capacity:
            raise ValueError(
                f"{stop} positions do not fit into a cache of {self._capacity}: make it as long as the text"
            )
        if self._keys is None or self._values is None:
            batch, _, heads, dim = keys.shape
            self._keys, self._values = (x.new_empty(batch, self._capacity, heads, dim) for x in (keys, values))
        self._keys[:, start:stop], self._values[:, start:stop] = keys, values
        self.length = stop
        return self._keys[:, :stop], self._values[:, :stop]
