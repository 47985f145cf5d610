"""Every gRPC method says what it needs."""

from __future__ import annotations

from oncelog.server.security import verbs
from oncelog.wire import messages, methods


def test_every_method_of_the_wire_needs_a_verb() -> None:
    """A method that is added to the wire without a line here would be open to everybody."""
    assert set(verbs.METHODS) | verbs.SERVERS == set(methods.METHODS)
    assert not set(verbs.METHODS) & verbs.SERVERS


def test_the_field_that_names_the_subject_is_in_the_request() -> None:
    """A wrong field would judge every call as one on the empty name."""
    for method, need in verbs.METHODS.items():
        service, name = method.split(".")
        described = messages.FILE.services_by_name[service].methods_by_name[name].input_type
        fields = {field.name for field in described.fields}
        if need.field and described.name not in ("Raw", "WriteRequest", "ConsumeRequest"):
            assert need.field in fields, (method, need.field, fields)


def test_all_that_changes_more_than_records_is_admin_and_audited() -> None:
    """An admin verb without an audit line is a change that nobody can explain."""
    for method, need in verbs.METHODS.items():
        assert need.audited == (need.verb == "admin"), method


def test_opening_a_log_that_is_there_only_looks() -> None:
    """A client opens a log before it writes: that needs no admin."""
    opening = messages.CreateRequest(name="a", kind="log")
    assert verbs.need("Database.Create", opening).verb == "look"
    making = messages.CreateRequest(name="a", kind="queue", create=True)
    assert verbs.need("Database.Create", making) == verbs.Need("admin", "queue", "name", audited=True, making=True)
    assert verbs.need("Database.Policy", messages.PolicyRequest()).verb == "look"
