"""Mirrors: topics copied from one cluster to another, exactly once, round by round."""

from typing import TYPE_CHECKING

from spark_logbus.lazy_names import lazy_names

if TYPE_CHECKING:
    from spark_logbus.mirror.administration import (
        TranslatedPosition,
        forget_topic,
        translate_group,
    )
    from spark_logbus.mirror.audit import mirror_places
    from spark_logbus.mirror.config import MirrorConfig, Renaming
    from spark_logbus.mirror.round import Mirror, PartitionLag, RoundReport
    from spark_logbus.mirror.run import (
        Listener,
        MirrorProgress,
        open_mirror,
        run_mirror,
        source_at,
    )
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "administration": "TranslatedPosition forget_topic translate_group",
            "audit": "mirror_places",
            "config": "MirrorConfig Renaming",
            "round": "Mirror PartitionLag RoundReport",
            "run": "Listener MirrorProgress open_mirror run_mirror source_at",
        },
    )

__all__ = [
    "Listener",
    "Mirror",
    "MirrorConfig",
    "MirrorProgress",
    "PartitionLag",
    "Renaming",
    "RoundReport",
    "TranslatedPosition",
    "forget_topic",
    "mirror_places",
    "open_mirror",
    "run_mirror",
    "source_at",
    "translate_group",
]
