"""The server listens where it says, and nowhere else."""

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from pipeline import admin
from pipeline import config as configuration
from pipeline.checkpoint.card import ModelCard
from tests.e2e.listening import Listening, children, datagrams, listening, named_unix_sockets
from tests.e2e.test_process import Process
from tests.e2e.world import serving
from tests.fake_process import Script, factory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def test_the_door_the_admin_port_and_nothing_else(fake_card: ModelCard) -> None:
    """With a device worker in a process of its own, which listens nowhere."""

    async def main() -> None:
        before = listening(os.getpid())
        config = configuration.override(configuration.loads("", "test.toml"), port=0, admin_port=0)
        runner = factory(Script(), is_process=True, num_workers=1)
        async with (
            serving(fake_card, runner=runner) as server,
            admin.beside(server.pipeline, config, fake_card) as beside,
        ):
            assert beside is not None
            ports = sorted([int(server.url.rpartition(":")[2]), beside.port])
            opened = [each for each in listening(os.getpid()) if each not in before]
            assert opened == [Listening("127.0.0.1", port) for port in ports]
            worker = server.pipeline.telemetry.worker.pid
            assert worker and worker in children(os.getpid())
            assert not listening(worker) and not datagrams(worker) and not named_unix_sockets(worker)
        assert listening(os.getpid()) == before

    asyncio.run(main())


def test_all_kinds_of_sockets_would_be_found(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as four,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
        socket.socket(type=socket.SOCK_DGRAM) as udp,
        socket.socket(socket.AF_UNIX) as unix,
    ):
        udp.bind(("127.0.0.1", 0))
        unix.bind(str(tmp_path / "socket"))
        found = listening(os.getpid())
        assert Listening("127.0.0.1", four.getsockname()[1]) in found
        assert Listening("::1", six.getsockname()[1]) in found
        assert all(each.is_loopback for each in found)
        assert len(datagrams(os.getpid())) >= 1
        assert str(tmp_path / "socket") in named_unix_sockets(os.getpid())


@pytest.mark.model
@pytest.mark.nightly
@pytest.mark.timeout(240)
@pytest.mark.parametrize("placement", ["thread", "process"])
def test_stageline_serve(tmp_path: Path, placement: str) -> None:
    toml = f'[device]\ndevice = "cpu"\nnum_blocks = 64\nplacement = "{placement}"\n'
    server = Process(tmp_path, "--admin-port", "0", toml=toml)
    try:
        door = int(server.wait_ready().rpartition(":")[2])
        pid = server.process.pid
        found = listening(pid)
        assert len(found) == 2 and door in [each.port for each in found]
        assert all(each.is_loopback for each in found)
        assert not datagrams(pid) and not named_unix_sockets(pid)
        workers = children(pid)
        assert len(workers) == (placement == "process")
        for worker in workers:
            assert not listening(worker) and not datagrams(worker) and not named_unix_sockets(worker)
        server.process.terminate()
        assert server.wait() == 0, server.said
    finally:
        server.process.kill()
        server.process.wait()
