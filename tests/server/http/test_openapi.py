"""The OpenAPI document: valid, complete, and true."""

from __future__ import annotations

import json

from openapi_spec_validator import OpenAPIV31SpecValidator

from oncelog.server.http import openapi
from oncelog.server.http.routes import ROUTES


def test_a_validator_accepts_it() -> None:
    """Generators of clients refuse a document that is not valid."""
    document = json.loads(openapi.document_bytes())
    assert document["openapi"] == "3.1.0"
    OpenAPIV31SpecValidator(document).validate()


def test_every_route_is_in_it() -> None:
    """It is made from the table that requests are matched with; each operation has a name of its own."""
    document = openapi.document()
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    assert described == {(route.method, route.template.text) for route in ROUTES}
    names = [operation["operationId"] for item in document["paths"].values() for operation in item.values()]
    assert len(names) == len(set(names))


def test_every_name_in_a_path_can_come_in_the_query() -> None:
    """For proxies that decode ``%2F``, everywhere."""
    for route in ROUTES:
        assert {name for name in route.template.names if name} <= set(route.query), route.template.text
