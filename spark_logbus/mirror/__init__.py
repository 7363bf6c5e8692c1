"""Mirrors: topics copied from one cluster to another, exactly once, round by round."""

from typing import TYPE_CHECKING

from spark_logbus.lazy_names import lazy_names

if TYPE_CHECKING:
    from spark_logbus.mirror.administration import forget_topic
    from spark_logbus.mirror.audit import mirror_places
    from spark_logbus.mirror.config import MirrorConfig
    from spark_logbus.mirror.groups import TranslatedPosition, translate_group
    from spark_logbus.mirror.opening import open_mirror, source_at
    from spark_logbus.mirror.renaming import Renaming
    from spark_logbus.mirror.round import Mirror, PartitionLag, RoundReport
    from spark_logbus.mirror.run import Listener, MirrorProgress, run_mirror
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "administration": "forget_topic",
            "audit": "mirror_places",
            "config": "MirrorConfig",
            "groups": "TranslatedPosition translate_group",
            "round": "Mirror PartitionLag RoundReport",
            "opening": "open_mirror source_at",
            "renaming": "Renaming",
            "run": "Listener MirrorProgress run_mirror",
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
