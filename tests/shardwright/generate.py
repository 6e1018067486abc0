"""Writes the routes and documents of the client from the OpenAPI document of the service.

`make client` runs it, and a test fails where its files are not what it would write. The documents
are made by datamodel-code-generator; the routes, which it does not make, here.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.openapi import openapi

FOLDER = Path(__file__).parents[2] / "shardwright" / "client"
_LEFT_TO_THE_CLIENT = {"if-none-match", "prefer", "cursor", "last-event-id", "format"}
_OF_BROWSERS = {"ticket", "last_event_id"}
"""Parameters of event streams for browsers, which the client says in headers."""
"""Parameters that no method has: caches and pages are the client's business, and a form other than
JSON has a method of its own."""
_BUILTIN = {"id", "format", "type"}
_JSON = "application/json"
_BRIEF = "_brief"
_BRIEF_PAGE = "documents.BriefPage"
_DOCUMENTS_HEAD = '"""The documents of the service. `make client` writes this file."""'
_HEAD = '''"""The routes of the service, one method each. `make client` writes this file."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, Literal

from shardwright.client.call import Answer, Call, quoted
from shardwright.client.events import Event

if TYPE_CHECKING:  # the documents take longer to import than a command line may
    from shardwright.client import documents
'''
_SYNC = '''

class Routes:
    """The routes, synchronous."""

    def _send(self, call: Call[Answer]) -> Answer:
        raise NotImplementedError

    def _pages(self, call: Call[Any]) -> Iterator[Any]:
        raise NotImplementedError

    def _events(self, call: Call[Any]) -> Iterator[Event]:
        raise NotImplementedError
'''
_ASYNC = '''

class AsyncRoutes:
    """The routes, asynchronous."""

    async def _send(self, call: Call[Answer]) -> Answer:
        raise NotImplementedError

    def _pages(self, call: Call[Any]) -> AsyncIterator[Any]:
        raise NotImplementedError

    def _events(self, call: Call[Any]) -> AsyncIterator[Event]:
        raise NotImplementedError
'''


def documents_text(document: Mapping[str, Any]) -> str:
    """The bodies of requests and answers as TypedDicts."""
    with TemporaryDirectory() as folder:
        source, written = Path(folder) / "openapi.json", Path(folder) / "documents.py"
        source.write_text(json.dumps(document))
        command = [sys.executable, "-W", "ignore", "-m", "datamodel_code_generator"]
        options = {
            "--input": source,
            "--input-file-type": "openapi",
            "--output": written,
            "--output-model-type": "typing.TypedDict",
            "--target-python-version": "3.11",
            "--openapi-scopes": "schemas",
            "--custom-file-header": _DOCUMENTS_HEAD,
        }
        words = [str(word) for pair in options.items() for word in pair]
        subprocess.run([*command, *words], check=True, capture_output=True)
        text = written.read_text()
    # An older client works with a newer server, whose documents may have more members.
    text = text.replace(", closed=True", "")
    text = text.replace("from typing_extensions import TypedDict\n", "")
    return text.replace("Literal, NotRequired,", "Literal, NotRequired, TypedDict,", 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One parameter of a route."""

    name: str
    place: str
    annotation: str
    required: bool

    @property
    def argument(self) -> str:
        return re.sub(r"\W", "_", self.name).lower()

    @property
    def declared(self) -> str:
        if self.required:
            return f"{self.argument}: {self.annotation}"
        optional = self.annotation if "None" in self.annotation else f"{self.annotation} | None"
        return f"{self.argument}: {optional} = None"


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One operation of the OpenAPI document."""

    name: str
    method: str
    path: str
    parameters: tuple[Parameter, ...]
    body: str | None
    answers: Mapping[str, str]
    """The type of the answer by media type."""
    takes_key: bool
    says: str

    @property
    def is_list(self) -> bool:
        return self.answer.endswith("Page")

    @property
    def answer(self) -> str:
        """The type of the answer as JSON, in full where a list has a brief view besides."""
        return self.answers.get(_JSON, "None").removesuffix(f" | {_BRIEF_PAGE}")

    @property
    def has_brief(self) -> bool:
        return self.answers.get(_JSON, "").endswith(f" | {_BRIEF_PAGE}")

    @property
    def is_stream(self) -> bool:
        return "text/event-stream" in self.answers


def routes(document: Mapping[str, Any]) -> Iterator[Route]:
    """The routes of the API, in its order."""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if path.startswith("/v1/") or path in ("/livez", "/readyz"):
                yield _route(path, method, operation)


def _route(path: str, method: str, operation: Mapping[str, Any]) -> Route:
    listed = operation.get("parameters", [])
    parameters = [
        Parameter(
            name=each["name"],
            place=each["in"],
            annotation=_annotation(each["schema"]),
            required=bool(each.get("required")),
        )
        for each in listed
        if each["in"] == "path" or each["name"].lower() not in _LEFT_TO_THE_CLIENT | _OF_BROWSERS
    ]
    in_path = re.findall(r"\{(\w+)\}", path)
    parameters.sort(key=lambda one: (not one.required, one.place != "path", _at(one, in_path)))
    body = operation.get("requestBody")
    found = next(answer for code, answer in operation["responses"].items() if code[0] == "2")
    answers = {
        media: "str" if media != _JSON else _annotation(content.get("schema", {}))
        for media, content in found.get("content", {}).items()
    }
    return Route(
        name=re.sub(r"(?<!^)(?=[A-Z])", "_", operation["operationId"]).lower(),
        method=method.upper(),
        path=path,
        parameters=tuple(parameters),
        body=None if body is None else _annotation(body["content"][_JSON]["schema"]),
        answers=answers,
        takes_key=any(each["name"].lower() == "idempotency-key" for each in listed),
        says=_sentence(operation),
    )


def _at(parameter: Parameter, in_path: list[str]) -> int:
    return in_path.index(parameter.name) if parameter.name in in_path else len(in_path)


def _sentence(operation: Mapping[str, Any]) -> str:
    """The first sentence of what a route does."""
    text = " ".join(operation.get("description", operation["summary"]).split())
    return re.split(r"(?<=\.)\s", text)[0]


def _annotation(schema: Mapping[str, Any]) -> str:
    """The type of a value as Python writes it."""
    if "$ref" in schema:
        return f"documents.{schema['$ref'].rpartition('/')[2]}"
    if "anyOf" in schema or "oneOf" in schema:
        parts = [_annotation(each) for each in schema.get("anyOf", schema.get("oneOf", []))]
        return " | ".join(dict.fromkeys(parts))
    if "enum" in schema:
        return f"Literal[{', '.join(map(repr, schema['enum']))}]"
    if "const" in schema:
        return f"Literal[{schema['const']!r}]"
    kind = schema.get("type")
    if kind == "array":
        return f"list[{_annotation(schema.get('items', {}))}]"
    plain = {"string": "str", "integer": "int", "number": "float", "boolean": "bool"}
    return {**plain, "null": "None", "object": "dict[str, Any]"}.get(str(kind), "Any")


def routes_text(document: Mapping[str, Any]) -> str:
    """The routes as two classes with the same methods."""
    found = [*routes(document)]
    text = _HEAD
    for head, is_async in ((_SYNC, False), (_ASYNC, True)):
        text += head
        for route in found:
            for method in _methods(route, document, is_async=is_async):
                text += f"\n{method}"
    return text


def _methods(route: Route, document: Mapping[str, Any], *, is_async: bool) -> Iterator[str]:
    if route.is_stream:
        yield _method(route, route.name, "Event", "_events", "text/event-stream", is_async)
    elif route.is_list:
        page = route.answer.removeprefix("documents.")
        items = document["components"]["schemas"][page]["properties"]["items"]["items"]
        yield _method(route, route.name, _annotation(items), "_pages", _JSON, is_async)
    else:
        yield _method(route, route.name, route.answer, "_send", _JSON, is_async)
    if route.has_brief:
        kind, sends = ("dict[str, Any]", "_pages") if route.is_list else (_BRIEF_PAGE, "_send")
        yield _method(route, f"{route.name}{_BRIEF}", kind, sends, _JSON, is_async)
    for media in route.answers.keys() - {_JSON, "text/event-stream"}:
        if media in ("text/csv", "text/x-shellscript"):
            kind = {"text/csv": "csv", "text/x-shellscript": "script"}[media]
            yield _method(route, f"{route.name}_{kind}", "str", "_send", media, is_async)


def _method(route: Route, name: str, answer: str, sends: str, accept: str, is_async: bool) -> str:
    iterates = sends != "_send"
    # A table has every row and column, and a list in brief has a method of its own.
    others = {"limit", "fields", "view"} if accept == "text/csv" else set[str]()
    others |= {"view"} if route.has_brief else set()
    parameters = [one for one in route.parameters if one.name not in others]
    required = [one.declared for one in parameters if one.required]
    optional = [one.declared for one in parameters if not one.required]
    body = [] if route.body is None else [f"body: {route.body}"]
    behind = ["*", *optional] if optional else []
    declared = ["self", *required, *body, *behind]
    kind = "AsyncIterator" if is_async else "Iterator"
    returned = f"{kind}[{answer}]" if iterates else answer
    start = "async def" if is_async and not iterates else "def"
    awaits = "await " if is_async and not iterates else ""
    returns = "" if returned == "None" else "return "
    path = re.sub(r"\{(\w+)\}", r"{quoted(\1)}", route.path)
    arguments = [f"method={route.method!r}", f"path={'f' * ('{' in path)}{path!r}"]
    query = {one.name: one.argument for one in parameters if one.place == "query"}
    headers = {one.name: one.argument for one in parameters if one.place == "header"}
    if accept == "text/csv":
        query["format"] = '"csv"'
    if name.endswith(_BRIEF):
        query["view"] = '"brief"'
    for place, values in {"query": query, "headers": headers}.items():
        arguments += [f"{place}={_dict(values)}"] if values else []
    arguments += ["body=body"] if route.body else []
    arguments += ["takes_key=True"] if route.takes_key else []
    arguments += [f"accept={accept!r}"] if accept != _JSON else []
    call = f"Call({', '.join(arguments)})"
    return (
        f"    {start} {name}({', '.join(declared)}) -> {returned}:\n"
        f"{_docstring(route.says)}\n"
        f"        {returns}{awaits}self.{sends}({call})\n"
    )


def _docstring(sentence: str) -> str:
    return textwrap.fill(
        f'"""{sentence}"""', 100, initial_indent=" " * 8, subsequent_indent=" " * 8
    )


def _dict(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{name!r}: {value}" for name, value in values.items()) + "}"


def formatted(text: str) -> str:
    """A module with its imports in order, as ruff formats it."""
    for verb in (["check", "--select", "I", "--fix", "-q"], ["format"]):
        command = [sys.executable, "-m", "ruff", *verb, "--stdin-filename", "routes.py", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


def files() -> dict[Path, str]:
    """The files of the client that are made from the OpenAPI document, by path."""
    document = openapi()
    return {
        FOLDER / "documents.py": formatted(documents_text(document)),
        FOLDER / "routes.py": formatted(routes_text(document)),
    }


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
        print(f"wrote {path.name}: {len(text.splitlines())} lines")
