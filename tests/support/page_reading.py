"""Read the data out of a written page, and rows out of its tables."""

from __future__ import annotations

import json
import re
from typing import Any

_DATA = re.compile(r'<script type="application/json" id="model-data">(.*?)</script>', re.DOTALL)


def data_of(page: str) -> dict[str, Any]:
    """The data that a page shows."""
    (found,) = _DATA.findall(page)
    content: dict[str, Any] = json.loads(found)
    return content


def texts(data: dict[str, Any], positions: list[int]) -> list[str]:
    """The texts at positions of the table of strings."""
    return [data["strings"][position] for position in positions]


def call_ids(data: dict[str, Any]) -> list[str]:
    """The ids of the calls by number."""
    return texts(data, data["calls"]["id"])


def pairs(flat: list[int]) -> list[tuple[int, int]]:
    """A flat list of pairs."""
    return list(zip(flat[::2], flat[1::2], strict=True))


def overlay(data: dict[str, Any], name: str) -> dict[str, Any]:
    """The overlay with this id."""
    return next(each for each in data["overlays"] if each["id"] == name)
