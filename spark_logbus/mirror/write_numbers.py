"""Numbers of the writes of a round: they tell which plan they carry out, and if they do. Pure.

A round's decision stands in the atomic writer's state with the number of its write alone. The plan
stands in the mirror's. Should the two not belong together, as when one was restored from a backup,
that has to be noticed::

    bit  43       23        1        0
         | token  | attempt | closes |
"""

from __future__ import annotations

import secrets
from typing import Final

from spark_logbus.record.stage_id import WRITE_BITS

TOKEN_BITS: Final = 20
_ATTEMPT_BITS: Final = WRITE_BITS - TOKEN_BITS - 1


def new_token() -> int:
    """A plan's."""
    return secrets.randbits(TOKEN_BITS)


def new_write(token: int, *, closes: bool = False) -> int:
    """The number of another attempt to carry out the plan with that token; one that ``closes`` its
    round writes nothing."""
    return token << _ATTEMPT_BITS + 1 | secrets.randbits(_ATTEMPT_BITS) << 1 | closes


def is_of(write: int, token: int) -> bool:
    """True if the write carries out the plan with that token, or closes its round."""
    return write >> _ATTEMPT_BITS + 1 == token


def closes_round(write: int) -> bool:
    """True if the write says that nothing of its plan is carried out."""
    return bool(write & 1)
