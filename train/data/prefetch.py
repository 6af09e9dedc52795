"""Reading ahead in a worker thread, without ever changing what is read."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Request = TypeVar("Request", bound=Hashable)
Result = TypeVar("Result")


class Prefetch(Generic[Request, Result]):
    """Answers requests by `read`, a pure function of the request, and works out up to `depth` expected ones ahead.

    A request that was not expected is answered as well, only later; so that a rollback or another batch size needs no
    word to the reader. An error of a worker is raised where its result is taken. With depth 0 there is no thread.
    """

    def __init__(self, read: Callable[[Request], Result], depth: int) -> None:
        assert depth >= 0
        self._read, self.depth = read, depth
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="prefetch") if depth else None
        self._ahead: dict[Request, Future[Result]] = {}

    def take(self, request: Request, expected: Iterable[Request] = ()) -> Result:
        """Return the answer to `request`; `expected` are the requests that will likely follow, the next one first."""
        if self._pool is None:
            return self._read(request)
        ready = self._ahead.pop(request) if request in self._ahead else self._pool.submit(self._read, request)
        coming: dict[Request, Future[Result]] = {}
        for _, later in zip(range(self.depth), expected, strict=False):
            known = later in self._ahead
            coming[later] = self._ahead.pop(later) if known else self._pool.submit(self._read, later)
        for dropped in self._ahead.values():
            dropped.cancel()
        self._ahead = coming
        return ready.result()

    def close(self) -> None:
        """Drop what nobody took and wait for the thread to end; no request may follow."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._ahead.clear()
