"""Files of wishes with odd values and damaged bytes: each is taken, or refused with every fault told and no secret."""

import json
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

import yaml

from app.settings.effective_settings import masked
from app.settings.field_errors import SettingsError
from app.settings.schema import GatewaySettings, Registry
from app.settings.sources import load_registry, load_settings
from app.settings.tenants_file import read_tenants
from tests.fuzz.chance import bent, bitten, text_of
from tests.fuzz.gateway import Broken

SECRET = "S3CR3T"

REGISTRY: dict[str, Any] = {
    "engines": [
        {
            **{"id": "docs", "url": f"https://docs.example/rcp?key={SECRET}", "weight": 2.5, "priority": 1},
            **{"headers": {"Authorization": f"Bearer {SECRET}", "X-Env": "${NAME}"}, "timeoutMs": 500, "retries": 2},
            **{"replicas": ["https://docs2.example/rcp"], "hedge": True, "breaker": {"failures": 3, "share": 0.5}},
            **{"tls": {"caFile": "ca.pem", "certFile": "c.pem", "keyFile": "k.pem"}, "maxTrust": "community"},
        },
        {"id": "notes", "command": ["notes", f"--token={SECRET}"], "idNamespace": "n", "enabled": False},
        {"id": "eu", "url": "http://eu.example", "discover": True, "discoverHosts": ["a.example:1", "[::1]"]},
    ]
}
SETTINGS: dict[str, Any] = {
    "server": {
        **{"name": "g", "id": "g1", "host": "::1", "port": 0, "workers": 2, "public_url": "https://rcp.example"},
        **{"trusted_proxies": ["10.0.0.0/8"], "allowed_hosts": ["a.example"], "cors_origins": ["https://a.example"]},
        "tls": {"cert_file": "c", "key_file": "k"},
    },
    "retrieve": {"deadline_ms": 5000, "overfetch": 2.0, "identity": "uri", "quorum": 0.5},
    "fusion": {"method": "rrf", "rrf_k": 60},
    "state": {"max_cursors": 5},
    "log": {"level": "debug", "bodies": False},
    "auth": {"mode": ["keys", "jwt"], "tenants_file": "t.yaml"},
    "jwt": {"issuer": "i", "audience": "a", "jwks_url": f"https://i.example/k?key={SECRET}", "roles": {"w": "write"}},
    "screen": {"injection": "mark"},
}
TENANTS: dict[str, Any] = {
    "tenants": {
        "red": {
            "keys": [{"id": "k", "sha256": "ab" * 32, "expires": "2027-01-31"}],
            **{"engines": ["docs", "e*"], "roles": ["read", "admin"], "weights": {"docs": 2.0}},
            **{"limits": {"rps": 2.5, "burst": 5, "hits_per_day": 9}, "fusion": {"method": "convex"}},
        },
        "anonymous": {"engines": ["docs"]},
    }
}
YAML_BITES = (
    b"&a [*a, *a]",
    b"!!python/object:os.system x",
    b"<<: {a: 1}",
    b"*missing",
    b"? [a]\n: b",
    b"\t",
    b"- - -",
)


def file_of(chance: Random) -> tuple[str, bytes]:
    """(what it is meant to be, its bytes)."""
    kind = chance.choice(("registry", "registry", "settings", "tenants"))
    whole = {"registry": REGISTRY, "settings": SETTINGS, "tenants": TENANTS}[kind]
    if kind == "settings":
        whole = {name: section for name, section in whole.items() if chance.random() < 0.3}
    document = bent(chance, whole, 0.06)
    if kind == "registry" or chance.random() < 0.7:
        return kind, bitten(chance, text_of(chance, document))
    try:
        written = yaml.dump(document, allow_unicode=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    except RecursionError:
        written = b"[" * 1100
    if chance.random() < 0.2:
        at = chance.randrange(len(written) + 1)
        written = written[:at] + chance.choice(YAML_BITES) + written[at:]
    return kind, bitten(chance, written)


def read(kind: str, path: Path) -> str:
    """Read a file as the gateway does; what would be shown of it, or of its faults. Raises Broken."""
    environ = {"NAME": SECRET, "RCP_GATEWAY__SERVER__PORT": "1"}
    try:
        if kind == "registry":
            loaded = load_registry(path, environ)
            return "" if misspelt(loaded.registry) else json.dumps(masked(loaded.registry)) + repr(loaded)
        if kind == "settings":
            settings = load_settings(path, environ)
            return "" if astray(settings) else json.dumps(masked(settings))
        return repr(read_tenants(path))
    except SettingsError as refused:
        if not refused.faults:
            raise Broken(f"refused without a fault: {refused!r}") from None
        return f"{refused}{refused!r}"


def misspelt(registry: Registry) -> bool:
    """Whether the damage has made of the option with the secret another one, whose name does not speak of secrets."""
    words = [word for engine in registry.engines for word in engine.command or ()]
    return any(SECRET in word and not word.startswith("--token=") for word in words)


def astray(settings: GatewaySettings) -> bool:
    """Whether the damage has moved the secret to where nobody looks for one: a URL's path, the name of an audience."""
    url = settings.jwt.jwks_url if settings.jwt is not None else None
    at_home = 0 if url is None else urlsplit(url).query.count(SECRET)
    return settings.model_dump_json().count(SECRET) > at_home


def check(chance: Random, place: Path) -> None:
    """One file of chance. Raises Broken, and whatever else comes out where only a SettingsError may."""
    kind, content = file_of(chance)
    path = place / ("rcp.json" if kind == "registry" else f"{kind}.yaml")
    path.write_bytes(content)
    shown = read(kind, path)
    if SECRET in shown:
        raise Broken(f"a secret of the {kind} is shown: {shown[:2000]}")
