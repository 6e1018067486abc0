"""The synchronous client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Self

import httpx

from shardwright.client.call import Answer, Call
from shardwright.client.errors import Unreachable
from shardwright.client.events import Event, EventReader
from shardwright.client.exchange import STREAM_PAUSE_S, Pause, exchange, refusal
from shardwright.client.http import http_options
from shardwright.client.routes import Routes
from shardwright.client.settings import ClientSettings


class Client(Routes):
    """Asks the service at a URL, or as settings say. Without settings, those of the environment
    hold, but for a URL that is given."""

    def __init__(
        self,
        settings: ClientSettings | str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.settings = ClientSettings.of(settings)
        self._http = httpx.Client(transport=transport, **http_options(self.settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _send(self, call: Call[Answer]) -> Answer:
        """Returns the answer to a call, sent again after a pause where that may help. Raises
        ShardwrightError."""
        steps = exchange(call, self.settings, self._http.build_request)
        step = next(steps)
        try:
            while True:
                step = steps.send(self._outcome_of(step))
        except StopIteration as end:
            answer: Answer = end.value
            return answer

    def _outcome_of(
        self, step: httpx.Request | Pause
    ) -> httpx.Response | httpx.TransportError | None:
        """Sends a request, and returns the response or the error of the connection; or waits for a
        pause, and returns None."""
        if isinstance(step, Pause):
            time.sleep(step.seconds)
            return None
        try:
            return self._http.send(step)
        except httpx.TransportError as error:
            return error

    def _pages(self, call: Call[Any]) -> Iterator[Any]:
        """Yields the items of all pages. A page is fetched when its first item is needed."""
        page = self._send(call)
        yield from page["items"]
        while page["next"]:
            page = self._send(call.next_page(page["next"]))
            yield from page["items"]

    def _events(self, call: Call[Any]) -> Iterator[Event]:
        """Yields the events of a stream until the one named `end`. A stream that was cut off is
        continued after the last event received. Raises Unreachable once the retries are used up."""
        reader = EventReader()
        cut_off: httpx.TransportError | None = None
        for _ in range(1 + self.settings.retries):
            try:
                headers = call.stream_headers(reader.last_id)
                with self._http.stream(call.method, call.path, headers=headers) as response:
                    if not response.is_success:
                        response.read()
                        raise refusal(response)
                    for line in response.iter_lines():
                        event = reader.feed(line)
                        if event is not None:
                            yield event
                            if event.name == "end":
                                return
            except httpx.TransportError as error:
                cut_off = error
                time.sleep(STREAM_PAUSE_S)
            else:
                return
        raise Unreachable(f"the stream of {call.path} was cut off: {cut_off}")
