from tests.service.conftest import (  # noqa: F401 - fixtures
    _compiled_cost_model,
    client,
    make_client,
)
