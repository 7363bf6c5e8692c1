"""Schemas as text."""

from __future__ import annotations

import json
from typing import Any

INT, LONG, TEXT = '"int"', '"long"', '"string"'


def record(*fields: str, name: str = "shop.Order", **types: Any) -> str:
    return json.dumps(
        {
            "type": "record",
            "name": name,
            "fields": [
                {"name": each.rstrip("?"), "type": types.get(each.rstrip("?"), "int")}
                | ({"default": 0} if each.endswith("?") else {})
                for each in fields
            ],
        }
    )
