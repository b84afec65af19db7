"""One fleet for all tests: two real replicas and a gateway in front of them."""

import signal

import pytest

from gateway import Gateway
from replica import Replica

# No test takes a minute but those that restart a replica.
TEST_SECONDS = 300


def interrupt(*_):
    raise KeyboardInterrupt  # so that fixtures still end what they started


signal.signal(signal.SIGTERM, interrupt)


def pytest_collection_modifyitems(items):
    """What breaks replicas comes last: the last of it leaves one broken."""
    items.sort(key=lambda item: item.path.name == "test_faults.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    def late(*_):
        raise TimeoutError(f"{item.name} took longer than {TEST_SECONDS} s")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(TEST_SECONDS)
    try:
        return (yield)
    finally:
        signal.alarm(0)


@pytest.fixture(scope="session")
def replicas(tmp_path_factory):
    folder = tmp_path_factory.mktemp("replicas")
    pair = [Replica(folder / "a.log"), Replica(folder / "b.log")]
    try:
        for replica in pair:
            replica.start()
        for replica in pair:
            replica.wait_ready()
        yield pair
    finally:
        for replica in pair:
            replica.kill()


@pytest.fixture(scope="session")
def gateway(replicas, tmp_path_factory):
    gateway = Gateway(tmp_path_factory.mktemp("gateway"), [replica.url for replica in replicas])
    try:
        gateway.wait_ready(*[replica.url for replica in replicas])
        yield gateway
    finally:
        assert gateway.stop() == 0, gateway.log.read_text()[-4000:]
