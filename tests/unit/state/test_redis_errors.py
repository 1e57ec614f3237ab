"""Each way in which a Redis cannot be used has its cause in words, against real servers."""

import asyncio
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trustme

from app.settings.field_errors import SettingsError
from app.state.redis import RedisConnection, cause_of
from app.telemetry.metric_groups import StateMetrics
from tests.support.ports import free_port
from tests.support.redis_server import REMEDY, SERVER, wait_for_redis


@contextmanager
def server(folder: Path, *options: str, tls: bool = False) -> Iterator[int]:
    """The port of a redis-server of this test's own."""
    if SERVER is None:
        pytest.fail(REMEDY, pytrace=False)
    port = free_port()
    ports = ["--port", "0", "--tls-port", str(port)] if tls else ["--port", str(port)]
    command = [SERVER, *ports, "--bind", "127.0.0.1", "--save", "", "--dir", str(folder), *options]
    with _running(command, port):
        yield port


def _user(rights: str) -> list[str]:
    """The options for a user `app` with these rights."""
    return ["--user", "app", "on", ">SECRET", *rights.split()]


@contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        wait_for_redis(process, port)
        yield
    finally:
        process.terminate()
        process.wait()


async def cause(url: str) -> str | None:
    """What a link to this URL finds."""
    link = RedisConnection(url, 1, 1.0, "test:probe", StateMetrics(None))
    try:
        fault = await link.fault()
        return None if fault is None else cause_of(fault)
    finally:
        await link.close()


async def test_a_redis_that_is_well(tmp_path: Path) -> None:
    """There is no cause; nor for a user with the rights that docs/explanation/state.md asks for."""
    with server(tmp_path, *_user("~test:* +@read +@write +@scripting +@connection")) as port:
        assert await cause(f"redis://127.0.0.1:{port}/0") is None
        assert await cause(f"redis://app:SECRET@127.0.0.1:{port}/0") is None


@pytest.mark.parametrize(
    ("options", "address", "words"),
    [
        pytest.param(["--requirepass", "right"], "redis://:SECRET@{}/0", "wrong user or password", id="password"),
        pytest.param(["--requirepass", "right"], "redis://u:SECRET@{}/0", "wrong user or password", id="user"),
        pytest.param(["--requirepass", "right"], "redis://{}/0", "asks for a password", id="no password"),
        pytest.param(_user("~* +@all -set"), "redis://app:SECRET@{}/0", "lacks a right", id="right"),
        pytest.param(_user("~* +@all -eval -evalsha"), "redis://app:SECRET@{}/0", "lacks a right", id="eval"),
        pytest.param(_user("~other:* +@all"), "redis://app:SECRET@{}/0", "lacks a right", id="keys"),
        pytest.param(["--databases", "2"], "redis://{}/7", "no database of the number", id="database"),
        pytest.param(["--cluster-enabled", "yes"], "redis://{}/0", "Redis Cluster", id="cluster"),
        pytest.param(["--cluster-enabled", "yes"], "redis://{}/1", "Redis Cluster", id="cluster database"),
        pytest.param(["--replicaof", "127.0.0.1 1"], "redis://{}/0", "read-only replica", id="replica"),
        pytest.param([], "rediss://{}/0", "no answer in time", id="TLS to a plain port"),
    ],
)
async def test_what_redis_refuses(tmp_path: Path, options: list[str], address: str, words: str) -> None:
    """The cause is named, and no password."""
    with server(tmp_path, *options) as port:
        found = await cause(address.format(f"127.0.0.1:{port}"))
    assert found is not None
    assert words in found
    assert "SECRET" not in found


async def test_a_sentinel(tmp_path: Path) -> None:
    """A Sentinel answers pings and stores nothing."""
    sentinel = shutil.which("redis-sentinel") or shutil.which("redis-sentinel", path="/usr/bin:/usr/local/bin")
    if sentinel is None:
        assert SERVER is not None
        sentinel = SERVER
    port, file = free_port(), tmp_path / "sentinel.conf"
    file.write_text(f"port {port}\nbind 127.0.0.1\ndir {tmp_path}\n", encoding="utf-8")
    with _running([sentinel, str(file), "--sentinel"], port):
        for database in (0, 1):
            found = await cause(f"redis://127.0.0.1:{port}/{database}")
            assert found is not None
            assert "Sentinel" in found


async def test_tls(tmp_path: Path) -> None:
    """A certificate of an unknown authority, and one for another name, are told from a Redis that is well."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    issued = authority.issue_cert("localhost")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    options = ["--tls-cert-file", str(tmp_path / "cert.pem"), "--tls-key-file", str(tmp_path / "key.pem")]
    options += ["--tls-ca-cert-file", str(tmp_path / "ca.pem"), "--tls-auth-clients", "no"]
    with ExitStack() as stack:
        try:
            port = stack.enter_context(server(tmp_path, *options, tls=True))
        except pytest.fail.Exception:
            pytest.skip("this redis-server is built without TLS")
        assert await cause(f"rediss://localhost:{port}/0?ssl_ca_certs={tmp_path}/ca.pem") is None
        for url in (f"rediss://localhost:{port}/0", f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={tmp_path}/ca.pem"):
            found = await cause(url)
            assert found is not None
            assert "its certificate is not trusted" in found


async def test_nobody_there() -> None:
    """A name without an address, a port without a listener, a listener that is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        name, refused, hung = await asyncio.gather(
            cause("redis://no-such-redis.invalid:6379/0"),
            cause(f"redis://127.0.0.1:{unused.getsockname()[1]}/0"),
            cause(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"),
        )
    assert "host in state.url cannot be resolved" in str(name)
    assert refused == "connection refused"
    assert hung == "no answer in time"


@pytest.mark.parametrize(
    ("query", "words"),
    [("socket_timeout=abc", "invalid parameter"), ("nonsense=1", "unknown parameter"), ("db=x", "invalid parameter")],
)
def test_parameters_of_the_url(query: str, words: str) -> None:
    """What the library cannot use is an error of the settings."""
    with pytest.raises(SettingsError, match=words) as caught:
        RedisConnection(f"redis://:SECRET@127.0.0.1:1/?{query}", 1, 1.0, "test:probe", StateMetrics(None))
    assert "SECRET" not in str(caught.value)
