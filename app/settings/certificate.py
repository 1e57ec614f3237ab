"""The end of validity of a certificate file, for warnings and for a metric.

The standard library shows it only for a peer's verified certificate, so the few fields before it are skipped here.
"""

import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_VERSION, _UTC_TIME = 0xA0, 0x17


def certificate_expiry(file: str) -> float:
    """Unix time at which the first certificate of a PEM file, or of its chain, expires.

    Raises OSError for an unreadable file and ValueError for one without a certificate.
    """
    found = [_not_after(ssl.PEM_cert_to_DER_cert(pem.decode("ascii"))) for pem in _PEM.findall(Path(file).read_bytes())]
    if not found:
        raise ValueError("contains no PEM certificate")
    return min(found)


def _not_after(der: bytes) -> float:
    """`notAfter` of a certificate (RFC 5280 §4.1). Raises ValueError if it is cut short."""
    try:
        _, at, _ = _element(der, 0)  # Certificate
        _, at, _ = _element(der, at)  # TBSCertificate
        tag, _, end = _element(der, at)
        if tag == _VERSION:  # optional, and absent in version 1
            at = end
        for _ in ("serialNumber", "signature", "issuer"):
            _, _, at = _element(der, at)
        _, at, _ = _element(der, at)  # Validity
        _, _, at = _element(der, at)  # notBefore
        tag, start, end = _element(der, at)
    except IndexError:
        raise ValueError("is not a complete certificate") from None
    text = der[start:end].decode("ascii")
    if tag == _UTC_TIME:  # two digits of the year: 50 to 99 mean the last century (RFC 5280 §4.1.2.5.1)
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Tag, start and end of the content of the DER element at this offset."""
    tag, length, start = der[at], der[at + 1], at + 2
    if length & 0x80:  # the long form: this many bytes of length follow
        size = length & 0x7F
        length, start = int.from_bytes(der[start : start + size]), start + size
    return tag, start, start + length
