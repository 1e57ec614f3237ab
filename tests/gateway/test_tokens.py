"""JSON Web Tokens of an issuer that publishes its keys: whose they are, what they may, and what is not believed."""

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from time import time
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256

from app.api.auth import jwks, jwt
from app.settings.tenants_file import tenants_in
from tests.support.authority import Authority
from tests.support.issuer import Issuer, claims, ec, issuing, published, rsa, secret, token
from tests.support.log_lines import own_log
from tests.support.running_gateway import Json, RunningGateway, entry, running, until
from tests.support.tenancy import asked, bearer, result, tenant

KEY = ec("k1")
STATIC = "a-static-key-0123456789"
TENANTS: Json = {"red": tenant("*", keys=(STATIC,), roles=["read", "feedback"]), "blue": tenant()}


@asynccontextmanager
async def believing(
    issuer: Issuer, mode: str = "jwt", declared: Json | None = None, entries: Any = (), **wishes: Any
) -> AsyncIterator[RunningGateway]:
    """A gateway that believes this issuer and has looked at its keys once."""
    settings = {
        "auth": {"mode": mode, "tenants_file": "t", "max_failures": 1000},
        "jwt": {**issuer.settings, "timeout_seconds": 20.0, **wishes},
    }
    looks = issuer.looks
    async with running(list(entries), settings, reach=bool(entries), tenants=declared or TENANTS) as gateway:
        await until(lambda: issuer.silent or issuer.looks > looks)
        authenticator = gateway.state.authenticator
        assert authenticator is not None
        token_verifier: Any = authenticator.token_verifier
        await until(lambda: issuer.silent or token_verifier.keys.version == 1)
        yield gateway


async def test_a_good_token_is_its_tenants() -> None:
    """What a token says decides the tenant; the log names the issuer's key and no more."""
    async with issuing(KEY) as issuer:
        with own_log() as log:
            async with believing(issuer) as gateway:
                made = token(KEY)
                assert await result(gateway, made, "info")
                assert await result(gateway, made, "info")
                assert "<JwtVerifier 1/10000 remembered" in repr(gateway.state.authenticator.token_verifier)  # type: ignore[union-attr]
    lines = [line for line in log.lines if line["event"] == "request"]
    assert [(line["tenant"], line["key"]) for line in lines] == [("red", "jwt:k1")] * 2
    assert made not in log.text
    assert "client=abc" not in log.text


def _unsigned(alg: str = "none") -> str:
    _, body, _ = token(KEY).split(".")
    return f"{_part({'alg': alg, 'kid': 'k1'})}.{body}.AAAA"


def _public_key_as_secret() -> str:
    """The classical confusion: signed symmetrically with what everybody can read."""
    head = _part({"alg": "HS256", "kid": "k1"})
    signed = f"{head}.{token(KEY).split('.')[1]}"
    signature = hmac.new(KEY.as_pem(private=False), signed.encode(), "sha256").digest()
    return f"{signed}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def _critical() -> str:
    """A header that must be understood, and is not."""
    _, body, signature = token(KEY).split(".")
    return f"{_part({'alg': 'ES256', 'kid': 'k1', 'crit': ['x'], 'x': 1})}.{body}.{signature}"


def _signed(header: Json) -> str:
    """A token with this header, signed as it stands."""
    signed = f"{_part(header)}.{_part(claims())}"
    signature = KEY.private_key.sign(signed.encode(), ECDSA(SHA256()))
    pair = b"".join(number.to_bytes(32) for number in decode_dss_signature(signature))
    return f"{signed}.{base64.urlsafe_b64encode(pair).decode().rstrip('=')}"


def _part(value: Json) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


NOW = int(time())


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(lambda: token(ec("k1")), id="another key of the same name"),
        pytest.param(lambda: token(KEY, iss="https://evil.test"), id="another issuer"),
        pytest.param(lambda: token(KEY, iss=None), id="no issuer"),
        pytest.param(lambda: token(KEY, aud="other"), id="another audience"),
        pytest.param(lambda: token(KEY, aud=None), id="no audience"),
        pytest.param(lambda: token(KEY, aud=["x", 5]), id="an audience that is none"),
        pytest.param(lambda: token(KEY, exp=NOW - 3600), id="expired"),
        pytest.param(lambda: token(KEY, exp=None), id="without an end"),
        pytest.param(lambda: token(KEY, exp="tomorrow"), id="an end that is none"),
        pytest.param(lambda: token(KEY, nbf=NOW + 3600), id="not yet good"),
        pytest.param(lambda: token(KEY, tenant=None), id="no tenant"),
        pytest.param(lambda: token(KEY, tenant="nobody"), id="a tenant that is not declared"),
        pytest.param(lambda: token(KEY, tenant="anonymous"), id="anonymous"),
        pytest.param(lambda: token(KEY, tenant=["red"]), id="a tenant that is no text"),
        pytest.param(lambda: token(secret("s1"), "HS256"), id="symmetric"),
        pytest.param(_public_key_as_secret, id="public key as secret"),
        pytest.param(_unsigned, id="unsigned"),
        pytest.param(lambda: _unsigned("ES256"), id="signature of another length"),
        pytest.param(lambda: token(KEY)[:-3] + "AAA", id="altered"),
        pytest.param(lambda: "a.b.c", id="no token"),
        pytest.param(lambda: "eyJhbGciOiJFUzI1NiJ9.e30.", id="no signature"),
        pytest.param(_critical, id="a critical header that nobody knows"),
        pytest.param(
            lambda: _signed({"alg": "ES256", "kid": "k1", "crit": []}), id="an empty list of critical headers"
        ),
        pytest.param(lambda: _signed({"alg": "ES256", "kid": "k1", "crit": None}), id="no list of critical headers"),
        pytest.param(lambda: _signed({"alg": "ES256", "kid": "k1", "crit": ["kid"]}), id="a usual header as critical"),
    ],
)
async def test_what_is_not_believed_is_401(made: Any) -> None:
    """Whatever is wrong with a token, its caller is told that it is not valid, and nothing else."""
    tenants = {**TENANTS, "anonymous": tenant("*")}
    async with issuing(KEY, secret("s1")) as issuer, believing(issuer, declared=tenants) as gateway:
        answer = await asked(gateway, made(), "info")
    assert answer.status_code == 401
    assert answer.json()["error"]["message"] == "the credential is not valid"
    assert 'error="invalid_token"' in answer.headers["www-authenticate"]


async def test_keys_and_tokens_together() -> None:
    """Both modes at once; a token in X-API-Key is no token, and a key opens nothing where only tokens do."""
    async with issuing(KEY) as issuer:
        async with believing(issuer, "keys,jwt") as gateway:
            for credential in (STATIC, token(KEY)):
                assert await result(gateway, credential, "info")
            message = {"jsonrpc": "2.0", "id": 1, "method": "info"}
            wrong = await gateway.post(message, headers={"x-api-key": token(KEY)})
        async with believing(issuer, "jwt") as gateway:
            closed = await asked(gateway, STATIC, "info")
    assert wrong.status_code == closed.status_code == 401


async def test_a_token_that_names_no_key() -> None:
    """Those of the issuer's keys are tried that its algorithm can be made with, also while keys are being changed."""
    keys = [ec("e1"), KEY, ec("e2"), rsa("r1")]
    async with issuing(*keys) as issuer, believing(issuer) as gateway:
        for key, algorithm in zip(keys, ["ES256"] * 3 + ["RS256"], strict=True):
            assert await result(gateway, token(key, algorithm, {"kid": None}), "info")
        for stranger in (token(ec("x"), "ES256", {"kid": None}), token(keys[3], "RS512", {"kid": None})):
            assert (await asked(gateway, stranger, "info")).status_code == 401


async def test_rsa_and_lists_of_audiences() -> None:
    """RS256 by default, several audiences, and other headers than those that are needed."""
    key = rsa("r1")
    async with issuing(KEY, key) as issuer, believing(issuer) as gateway:
        made = token(key, "RS256", {"x5t": "abc", "typ": "at+jwt", "nonce": "n"}, aud=["other", "rcp-gateway"])
        assert await result(gateway, made, "info")
        refused = await asked(gateway, token(key, "RS512"), "info")
    assert refused.status_code == 401


async def test_claims_are_mapped_as_declared(engines: Any) -> None:
    """A nested claim names the tenant by another name; words of a scope are roles, never more than the tenant has."""
    wishes = {
        "tenant_claim": "org.team",
        "tenants": {"Team Red": "red"},
        "roles_claim": "scope",
        "roles": {"rcp:read": "read", "rcp:admin": "admin", "rcp:fb": "feedback"},
    }
    engine = await engines()
    async with issuing(KEY) as issuer, believing(issuer, entries=[entry("e", engine)], **wishes) as gateway:
        org = {"team": "Team Red", "x": 1}
        reads = token(KEY, org=org, scope="openid rcp:read rcp:admin")
        nothing = token(KEY, org=org, scope=["rcp:other", 7])
        assert (await result(gateway, reads, "retrieve", {"query": "q"}))["hits"]
        statuses = [
            (await gateway.client.get("/metrics", headers=bearer(reads))).status_code,
            (await asked(gateway, nothing, "retrieve", {"query": "q"})).status_code,
            (await asked(gateway, reads, "feedback")).status_code,
            (await asked(gateway, token(KEY, org={"team": "red"}), "info")).status_code,
            (await asked(gateway, token(KEY, org="Team Red"), "info")).status_code,
        ]
    assert statuses == [403, 403, 403, 401, 401]


async def test_a_new_key_is_looked_for_at_once_and_not_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token of a key that is not known makes us look, once, however many come; a rotated key then opens."""
    new = ec("k2")
    async with issuing(KEY) as issuer, believing(issuer) as gateway:
        looks = issuer.looks
        await asyncio.gather(*(asked(gateway, token(ec(f"made-up-{number}")), "info") for number in range(20)))
        assert issuer.looks == looks  # it was looked at just now
        token_verifier: Any = gateway.state.authenticator.token_verifier  # type: ignore[union-attr]
        token_verifier.keys._fetched_at -= jwks.MIN_FETCH_INTERVAL
        issuer.body = published(new)
        answers = await asyncio.gather(*(asked(gateway, token(new), "info") for _ in range(10)))
        assert issuer.looks == looks + 1
        old = await asked(gateway, token(KEY), "info")
    assert {answer.status_code for answer in answers} == {200}
    assert old.status_code == 401


async def test_a_withdrawn_key_ends_what_was_remembered() -> None:
    """A token that was verified once is verified anew after the keys changed."""
    async with issuing(KEY) as issuer, believing(issuer, refresh_seconds=1.0) as gateway:
        made = token(KEY)
        assert (await asked(gateway, made, "info")).status_code == 200
        issuer.body = published(ec("k2"))
        token_verifier: Any = gateway.state.authenticator.token_verifier  # type: ignore[union-attr]
        await until(lambda: token_verifier.keys.version == 2)
        assert (await asked(gateway, made, "info")).status_code == 401


@pytest.mark.parametrize("trouble", ["gone", "silent", "redirect", "nonsense", "empty", "huge", "weak"])
async def test_known_keys_stay_while_the_issuer_is_in_trouble(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the issuer does later, tokens of keys that are known are believed, and the log says what is wrong."""
    monkeypatch.setattr(jwks, "MAX_BYTES", 10_000)
    weak = rsa("weak", 1024)
    async with issuing(KEY) as issuer:
        with own_log() as log:
            async with believing(issuer, refresh_seconds=1.0, timeout_seconds=20.0) as gateway:
                token_verifier: Any = gateway.state.authenticator.token_verifier  # type: ignore[union-attr]
                token_verifier.keys._timeout = 0.2 if trouble == "silent" else 20.0
                _trouble(issuer, trouble, published(weak))
                await until(lambda: any(line["event"] == "jwks_failed" for line in log.lines))
                assert (await asked(gateway, token(KEY), "info")).status_code == 200
    assert "client=abc" not in log.text


def _trouble(issuer: Issuer, kind: str, weak: bytes) -> None:
    if kind == "gone":
        issuer.status = 500
    elif kind == "silent":
        issuer.silent = True
    elif kind == "redirect":
        issuer.status, issuer.headers = 302, "location: http://127.0.0.1:1/\r\n"
    else:
        issuer.body = {"nonsense": b"<html>", "empty": b'{"keys": []}', "huge": b" " * 20_000, "weak": weak}[kind]


async def test_before_the_issuer_was_ever_reached() -> None:
    """Nobody can tell yet: 503 and -32010, with Retry-After; a static key opens all the same, at once."""
    async with issuing(KEY) as issuer:
        issuer.silent = True
        async with believing(issuer, "keys,jwt", timeout_seconds=0.3) as gateway:
            answer = await asked(gateway, token(KEY), "info")
            assert await result(gateway, STATIC, "info")
            issuer.silent = False
            token_verifier: Any = gateway.state.authenticator.token_verifier  # type: ignore[union-attr]
            token_verifier.keys._timeout = 20.0
            token_verifier.keys._fetched_at -= jwks.MIN_FETCH_INTERVAL
            assert await result(gateway, token(KEY), "info")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert (answer.json()["error"]["code"], answer.json()["error"]["data"]["retryable"]) == (-32010, True)


async def test_a_flood_of_tokens_makes_no_table_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many good tokens no more are remembered than there is room for, and of bad ones none."""
    monkeypatch.setattr(jwt, "MAX_VERIFIED", 10)
    async with issuing(KEY) as issuer, believing(issuer) as gateway:
        token_verifier: Any = gateway.state.authenticator.token_verifier  # type: ignore[union-attr]
        for number in range(10):
            assert (await asked(gateway, token(ec("k1"), jti=f"bad-{number}"), "info")).status_code == 401
        assert len(token_verifier._verified) == 0
        for number in range(25):
            assert (await asked(gateway, token(KEY, jti=f"good-{number}"), "info")).status_code == 200
        assert len(token_verifier._verified) == 10


async def test_an_issuer_is_believed_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An issuer whose certificate the system's authorities vouch for is believed."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", authority.ca_file)
    async with issuing(KEY, tls=authority.server("localhost")) as issuer, believing(issuer) as gateway:
        assert issuer.url.startswith("https:")
        assert (await asked(gateway, token(KEY), "info")).status_code == 200


@pytest.mark.parametrize("wrong", ["authority", "name"])
async def test_keys_of_an_impostor_are_not_taken(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate of nobody we trust, or for another name: it is not even asked, and its tokens open nothing."""
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    monkeypatch.setenv("SSL_CERT_FILE", ours.ca_file)
    tls = theirs.server("localhost") if wrong == "authority" else ours.server("elsewhere.test")
    async with issuing(KEY, tls=tls) as issuer:
        issuer.silent = True  # nobody is to wait until it was asked
        with own_log() as log:
            async with believing(issuer) as gateway:
                await until(lambda: any(line["event"] == "jwks_failed" for line in log.lines))
                issuer.silent = False
                assert (await asked(gateway, token(KEY), "info")).status_code == 503
        assert issuer.looks == 0


async def test_a_tenant_taken_away_while_its_token_is_looked_at() -> None:
    """A look at the issuer that is under way brings nobody back."""
    async with issuing(KEY) as issuer, believing(issuer) as gateway:
        authenticator = gateway.state.authenticator
        assert authenticator is not None
        token_verifier: Any = authenticator.token_verifier
        token_verifier.keys._fetched_at -= jwks.MIN_FETCH_INTERVAL
        new = ec("k2")
        issuer.body = published(new)
        issuer.silent = True
        looks = issuer.looks
        request = asyncio.create_task(asked(gateway, token(new), "info"))
        await until(lambda: issuer.looks > looks)
        authenticator.replace(tenants_in("", {"tenants": {"blue": {}}}))
        token_verifier.keys._take(published(new))
        answer = await request
    assert answer.status_code == 401


async def test_tokens_of_a_removed_tenant_end(engines: Any) -> None:
    """A tenant that is removed takes its tokens with it."""
    async with issuing(KEY) as issuer, believing(issuer) as gateway:
        made = token(KEY)
        assert (await asked(gateway, made, "info")).status_code == 200
        assert gateway.state.authenticator is not None
        gateway.state.authenticator.replace(tenants_in("", {"tenants": {"blue": {}}}))
        assert (await asked(gateway, made, "info")).status_code == 401
