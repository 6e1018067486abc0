from tests.service.conftest import (  # noqa: F401 - fixtures
    _compiled_cost_model,
    _routes_that_are_prepared_once,
    client,
    make_client,
)
