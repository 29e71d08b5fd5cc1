import pytest
from launch_world import SCRIPT, Launched
from sshd_world import Sshd, need_sshd, open_cable


@pytest.fixture
def script(tmp_path):
    """A script that says what it is given, in a directory whose name needs quoting."""
    path = tmp_path / "a 'job'" / "say it.py"
    path.parent.mkdir()
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def launch():
    """Starts ``glt launch``; whatever is left of it is killed at the end."""
    launched = []

    def start(*words, **options):
        launched.append(Launched(*words, **options))
        return launched[-1]

    yield start
    for each in launched:
        each.close()


@pytest.fixture(scope="module")
def sshd(tmp_path_factory):
    """One that listens at two addresses of this host."""
    need_sshd("rsync")
    server = Sshd(tmp_path_factory.mktemp("ssh") / "d", ("127.0.0.1", "127.0.0.2"))
    server.need_login("127.0.0.1")
    yield server
    server.close()


@pytest.fixture(scope="module")
def cable(tmp_path_factory):
    with open_cable(tmp_path_factory.mktemp("ssh") / "d") as opened:
        yield opened
