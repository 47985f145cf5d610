"""Java's own HTTP client, with its defaults: it offers HTTP/2 with every first request of a connection."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.xdist_group("spark")  # its machine is the one Java that is there


def test_a_retry_from_java_is_answered_as_the_first_attempt(spark: SparkSession, http: httpx.Client, log: str) -> None:
    """The body is stored though the head offers another protocol, and a connection serves several requests."""
    jvm: Any = spark._jvm  # the gateway to Java has no other name
    client = jvm.java.net.http.HttpClient.newHttpClient()
    answers = []
    for _ in range(3):
        request = jvm.java.net.http.HttpRequest.newBuilder(
            jvm.java.net.URI.create(f"{http.base_url}/v1/logs/{log}/records")
        )
        request.header("Idempotency-Key", "order-42")
        request.POST(jvm.java.net.http.HttpRequest.BodyPublishers.ofString("paid"))
        found = client.send(request.build(), jvm.java.net.http.HttpResponse.BodyHandlers.ofString())
        answers.append((found.statusCode(), json.loads(found.body())))
    assert [(status, answer["position"], answer["duplicate"]) for status, answer in answers] == [
        (201, 0, False),
        (200, 0, True),
        (200, 0, True),
    ]
    entries = http.get(f"/v1/logs/{log}/records").json()["entries"]
    assert [(entry["id"], entry["value"]) for entry in entries] == [("order-42", "paid")]
