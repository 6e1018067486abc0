"""Requests that are under way may be ended all at once, each with an answer, as when the service
stops."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import ServiceError
from service.web.problems import service_error_response


class RunningRequests:
    """The requests that are under way, each by its task."""

    def __init__(self) -> None:
        self.error: ServiceError | None = None
        """What interrupted requests are answered with, once they are."""
        self.tasks = set[asyncio.Task[object]]()

    async def interrupt(self, error: ServiceError, after_s: float) -> None:
        """Waits at most `after_s` seconds for requests to end, and then answers with this error
        those that still run."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=after_s)
        self.error = error
        for task in self.tasks:
            task.cancel()


class Interruptible:
    """Middleware that answers a request which was interrupted. A thread that computes for it may
    go on, and nobody waits for that."""

    def __init__(self, app: ASGIApp, running: RunningRequests) -> None:
        self.app, self.running = app, running

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on. If the request is interrupted before its answer has begun, answers
        with the error of the interruption."""
        task = asyncio.current_task()
        if scope["type"] != "http" or task is None:
            await self.app(scope, receive, send)
            return
        # A stop of the service cancels what takes too long. A client whose answer has not begun is
        # told so; otherwise the connection just ends.
        has_begun = False

        async def watched_send(message: Message) -> None:
            """Sends a message on, and notes that the answer has begun."""
            nonlocal has_begun
            has_begun = True
            await send(message)

        self.running.tasks.add(task)
        try:
            await self.app(scope, receive, watched_send)
        except asyncio.CancelledError:
            error = self.running.error
            if error is None or has_begun:
                raise
            task.uncancel()  # the task goes on, to answer
            await service_error_response(scope, error)(scope, receive, send)
        finally:
            self.running.tasks.discard(task)
