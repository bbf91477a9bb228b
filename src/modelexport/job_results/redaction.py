"""Secrets are replaced in everything that is written or shown: records, logs and error messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

_HIDDEN = "***"
_SHORTEST = 6
_SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|ACCESS_KEY|API_?KEY|ACCOUNT_KEY|SAS|CONNECTION_STRING", re.I)
# The part of an URL before the host: `ftp://name:password@host`.
_USER_INFORMATION = re.compile(r"(?<=://)[^/\s@]+@")
# The signature of a signed URL, and the header that has it.
_SIGNATURES = re.compile(r"((?:Signature|X-Amz-Credential|X-Amz-Security-Token|sig)=|Authorization: ?)[^&\s'\"]+", re.I)


def secret_values(storage_options: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The values of variables with the name of a secret, and every text in the options of a storage driver."""
    values = [value for name, value in os.environ.items() if _SECRET_NAMES.search(name)]
    values += _texts(storage_options or {})
    # The longest first: one may be part of another.
    return tuple(sorted({value for value in values if len(value) >= _SHORTEST}, key=len, reverse=True))


def redacted(text: str, secrets: Iterable[str]) -> str:
    """The text without secrets, user information in URLs, and signatures."""
    for secret in secrets:
        text = text.replace(secret, _HIDDEN)
    return _SIGNATURES.sub(rf"\1{_HIDDEN}", _USER_INFORMATION.sub(f"{_HIDDEN}@", text))


def _texts(value: Any, name: str = "") -> Iterable[str]:
    """Every text below a name that can be one of a secret. Addresses and regions stay readable."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _texts(inner, str(key))
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner, name)
    elif isinstance(value, str) and (_SECRET_NAMES.search(name) or name in ("key", "username", "user")):
        yield value
