"""Rewrites what the pages show of the code and of answers.

`python -m tests.docs.update [PAGE ...]`, of all pages unless some are named.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from service.store import Store, database
from service.tools.seeds import seed
from tests.docs import examples
from tests.docs.pages import blocks, name_of, pages, section
from tests.docs.sessions import has_sessions, with_sessions
from tests.docs.tables import TABLES

_SERVICE = "<!-- the examples run with require_api_keys -->"


def settings_of(text: str) -> dict[str, object]:
    """Settings of the service that the examples of a page need."""
    return {"require_api_keys": True} if _SERVICE in text else {}


def with_tables(text: str) -> str:
    """The page with its tables as the code has them."""
    for name, table in TABLES.items():
        found = section(name)
        if found.search(text):
            text = found.sub(lambda _, table=table: table(), text)
    return text


def with_outputs(text: str, database_url: str, folder: Path) -> str:
    """The page with its outputs as a service on an unused database prints them."""
    if not any(block.is_example for block in blocks(text)):
        return text
    with examples.served(database_url, **settings_of(text)) as address:
        found = [block for block in blocks(text) if block.is_example]
        printed = dict(zip(found, examples.run(found, address, database_url, folder), strict=True))
    result, kept, last = "", 0, ""
    for block in blocks(text):
        if block.is_example:
            last = printed[block]
        if block.is_output:
            result += text[kept : block.start] + last.removesuffix("\n") + "\n"
            kept = block.end
    return result + text[kept:]


def main() -> int:
    asked = [Path(name).resolve() for name in sys.argv[1:]] or pages()
    with tempfile.TemporaryDirectory() as folder:
        unused = Path(folder) / "unused.db"
        _prepare(unused)
        for number, page in enumerate(asked):
            own = Path(folder) / str(number)
            own.mkdir()
            shutil.copy(unused, own / "service.db")
            before = page.read_text()
            database_url = f"sqlite:///{own}/service.db"
            after = with_outputs(with_tables(before), database_url, own)
            if has_sessions(after):
                with examples.served(database_url) as address:
                    after = with_sessions(after, address)
            if after != before:
                page.write_text(after)
                sys.stdout.write(f"{name_of(page)} is rewritten\n")
    return 0


def _prepare(file: Path) -> None:
    engine = database.connect(f"sqlite:///{file}")
    database.migrate(engine)
    seed(Store(engine))
    engine.dispose()


if __name__ == "__main__":
    sys.exit(main())
