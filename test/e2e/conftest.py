"""One daemon on the demo model for the whole run; tests that need other flags start their own."""
import pytest

from harness import BIN, DEMO, Server


def pytest_sessionstart(session):
    missing = [str(p) for p in (BIN, DEMO / "config.json", DEMO / "model.safetensors") if not p.exists()]
    if missing:
        pytest.exit("missing: " + ", ".join(missing), returncode=3)


@pytest.fixture(scope="session")
def server():
    s = Server()
    yield s
    s.idle()
    s.stop()


@pytest.fixture(autouse=True)
def alive(request):
    """The shared server has to outlive every test that used it."""
    yield
    if "server" in request.fixturenames:
        s = request.getfixturevalue("server")
        assert s.proc.poll() is None, f"the server died:\n{s.tail()}"
        assert s.get("/health").status == 200
