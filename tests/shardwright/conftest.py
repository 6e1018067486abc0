from tests.service.conftest import (  # noqa: F401 - fixtures
    _compiled_cost_model,
    _openapi_document_that_is_made_once,
    _routes_that_are_prepared_once,
    client,
    make_client,
)
