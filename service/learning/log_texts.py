"""Training logs as requests bring them. Large ones are read in the process for texts
(service.runtime.text_process), where they do not hold up other requests."""

from __future__ import annotations

from anyio.to_thread import run_sync

from service.formats.logs.contents import LogContents, masked_unless_clean, read_contents
from service.learning.logged_runs import requested_global_batch, require_run
from service.runtime.admission import IsDisconnected
from service.runtime.text_process import TextProcess
from service.schemas.training_log import LogSubmission
from service.store import Store, UseCase


class LogTexts(UseCase):
    def __init__(self, store: Store, texts: TextProcess) -> None:
        super().__init__(store)
        self._texts = texts

    async def contents(
        self, submission: LogSubmission, is_disconnected: IsDisconnected
    ) -> LogContents:
        """Returns what a log says. A long log is read in the process for texts, once it is the
        tenant's turn. Raises Invalid for a log without a usable step, unless the run failed before
        its first one."""
        global_batch = await run_sync(requested_global_batch, self._store, submission)
        log_contents = await self._texts.read(
            is_disconnected,
            self._store.tenant,
            read_contents,
            submission.log,
            submission.framework,
            global_batch,
        )
        require_run(submission, log_contents)
        return log_contents

    async def masked(
        self, submission: LogSubmission, is_disconnected: IsDisconnected
    ) -> str | None:
        """Returns the log without its secrets; None where it has none."""
        tenant = self._store.tenant
        return await self._texts.read(is_disconnected, tenant, masked_unless_clean, submission.log)
