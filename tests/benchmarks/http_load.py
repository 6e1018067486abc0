"""A client that loads a server: blocking sockets, one a thread, which send texts made beforehand
and read answers by their Content-Length.

It parses nothing else, so that it takes about a tenth of the time of the servers that it measures,
and it runs on another core than they where there are two.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

NAME = "tests.benchmarks.http_load: blocking sockets in threads, keep-alive, no gzip"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Request:
    """A request as it is sent."""

    text: bytes

    @classmethod
    def of(
        cls, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Request:
        content = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if body is not None:
            lines += ["Content-Type: application/json", f"Content-Length: {len(content)}"]
        return cls("\r\n".join([*lines, "", ""]).encode() + content)


@dataclass
class Load:
    """What a load found. Latencies are in seconds."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    """Which the server took."""
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    def __add__(self, other: Load) -> Load:
        return Load(
            self.seconds + other.seconds,
            self.cpu_s + other.cpu_s,
            self.latencies + other.latencies,
            self.statuses + other.statuses,
        )

    @property
    def per_s(self) -> float:
        return len(self.latencies) / self.seconds

    @property
    def per_cpu_s(self) -> float:
        """Answers a second that a core of its own would give."""
        return len(self.latencies) / max(self.cpu_s, 1 / _TICKS_PER_S)

    def percentile_ms(self, percent: float) -> float:
        ordered = sorted(self.latencies)
        return 1000 * ordered[min(int(percent / 100 * len(ordered)), len(ordered) - 1)]

    @property
    def errors(self) -> int:
        return sum(count for status, count in self.statuses.items() if not 200 <= status < 300)


class Connection:
    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, request: Request) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        self._socket.sendall(request.text)
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._read()
        head, _, body = received.partition(b"\r\n\r\n")
        missing = _content_length(head) - len(body)
        pieces = [body]
        while missing > 0:
            pieces.append(self._read())
            missing -= len(pieces[-1])
        return int(head[9:12]), b"".join(pieces)

    def _read(self) -> bytes:
        piece = self._socket.recv(2**18)
        if not piece:
            raise ConnectionError("the server closed the connection")
        return piece

    def close(self) -> None:
        self._socket.close()


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


@dataclass(frozen=True)
class Server:
    """A server that is measured: its port, and its process."""

    port: int
    pid: int

    def cpu_s(self) -> float:
        with open(f"/proc/{self.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def closed_loop(self, requests: Iterable[Request], connections: int, seconds: float) -> Load:
        """Each connection sends its next request as soon as it has the answer to the last."""
        return self._run(_Shared(requests), connections, seconds, lambda: None)

    def open_loop(
        self, requests: Iterable[Request], per_s: float, connections: int, seconds: float
    ) -> Load:
        """So many requests a second, whether or not earlier ones are answered, while there are
        connections. A request that was due before it was sent has waited since it was due."""
        began = time.perf_counter()
        due = _Shared(began + i / per_s for i in itertools.count())
        return self._run(_Shared(requests), connections, seconds, lambda: next(due))

    def _run(
        self,
        requests: Iterator[Request],
        connections: int,
        seconds: float,
        next_due: Callable[[], float | None],
    ) -> Load:
        load = Load()
        ends = time.perf_counter() + seconds

        def loop() -> None:
            connection = Connection(self.port)
            while True:
                due = next_due()
                began = time.perf_counter() if due is None else due
                if began >= ends:
                    break
                time.sleep(max(began - time.perf_counter(), 0))
                status, _ = connection.send(next(requests))
                load.latencies.append(time.perf_counter() - began)
                load.statuses[status] += 1
            connection.close()

        threads = [threading.Thread(target=loop) for _ in range(connections)]
        began = time.perf_counter()
        cpu_before = self.cpu_s()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        load.cpu_s = self.cpu_s() - cpu_before
        load.seconds = time.perf_counter() - began
        return load


class _Shared:
    """An iterator that several threads may advance."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = iter(items)
        self._lock = threading.Lock()

    def __iter__(self) -> _Shared:
        return self

    def __next__(self) -> Any:
        with self._lock:
            return next(self._items)
