"""What the tests of the wire share: certificates, and the credentials of this process as they were before."""

import pytest
from certificates import Certificates

from glt.distributed.wire import credentials


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.issue("good")
    made.issue("client")
    made.issue("expired", days=-1)
    made.issue("other host", host="DNS:elsewhere.test")
    return made


@pytest.fixture(scope="session")
def foreign_certificates(tmp_path_factory):
    """Of another authority."""
    made = Certificates(tmp_path_factory.mktemp("foreign"))
    made.issue("good")
    return made


@pytest.fixture(autouse=True)
def _without_credentials(monkeypatch):
    monkeypatch.setattr(credentials, "_current", credentials.Credentials())
