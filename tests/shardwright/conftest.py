from tests.service.conftest import (  # noqa: F401 - fixtures
    _compiled_cost_model,
    _openapi_document_that_is_made_once,
    _routes_that_are_prepared_once,
    _statements_that_are_compiled_once,
    client,
    large_tasks_in_threads,
    make_client,
)
