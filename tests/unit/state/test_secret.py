"""The secret of a deployment: the same for all that share something, another one for everybody else."""

from pathlib import Path

import pytest

from app.protocol.errors import StateUnreachable
from app.state.secret import KEY_BYTES, DeploymentSecret
from app.state.store import MemoryStore

CONFIGURED = "sixteen or more letters"


class LostStore(MemoryStore):
    """A shared store that is not at hand."""

    @property
    def degraded(self) -> bool:
        return True


async def test_a_configured_secret_is_the_same_everywhere() -> None:
    one, other = DeploymentSecret(None, None), DeploymentSecret(MemoryStore(1, 100), None)
    assert await one.key(CONFIGURED) == await other.key(CONFIGURED)
    assert await one.key(CONFIGURED) != await one.key(CONFIGURED + "!")
    assert len(await one.key(CONFIGURED)) == KEY_BYTES


async def test_whoever_shares_nothing_has_a_key_of_its_own() -> None:
    one, other = DeploymentSecret(None, None), DeploymentSecret(None, None)
    assert await one.key(None) == await one.key(None) != await other.key(None)
    assert one.temporary


async def test_workers_share_it_through_their_folder(tmp_path: Path) -> None:
    one, other = (DeploymentSecret(None, str(tmp_path)) for _ in range(2))
    assert await one.key(None) == await other.key(None)
    assert [(path.name, path.stat().st_mode & 0o777) for path in tmp_path.iterdir()] == [("secret", 0o600)]


async def test_replicas_share_it_through_the_store() -> None:
    store = MemoryStore(1, 100)
    one, other = DeploymentSecret(store, None), DeploymentSecret(store, None)
    assert await one.key(None) == await other.key(None)
    assert not one.temporary


async def test_a_shared_secret_is_never_replaced_by_one_of_its_own() -> None:
    with pytest.raises(StateUnreachable):
        await DeploymentSecret(LostStore(1, 100), None).key(None)
