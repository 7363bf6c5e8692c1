from __future__ import annotations

from tests.unit.client.conftest import fake

__all__ = ["fake"]
