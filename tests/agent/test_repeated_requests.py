"""A stored request is repeated as it was, with its correlation id, until it is answered."""

from __future__ import annotations

import pytest

from blindpost.agent.errors import InternalError, network_error
from blindpost.client.errors import CorrelationIdError, NotAvailableError
from blindpost.wire.addresses import Host, Server

SERVER = Server((Host("router"),), "5223", bytes(32))


@pytest.mark.parametrize(("failure", "retried"), [(CorrelationIdError(), True), (NotAvailableError(), False)])
def test_one_whose_answer_is_still_to_come_waits_for_it(failure: Exception, retried: bool) -> None:
    """On a silent connection the first one timed out and is remembered: that is no error of ours."""
    assert isinstance(failure, CorrelationIdError | NotAvailableError)
    error = network_error(SERVER, failure)
    assert error.retried is retried
    assert isinstance(error, InternalError) is not retried
