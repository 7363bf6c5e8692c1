"""The compacting process: ``python -m spark_logbus.compactor``, started by a broker.

A broker never looks into a payload and imports no Arrow; compaction must do both. So the broker
starts this package as a child process, with a job (``messages``) that names the segments to read
and the files to write, and takes in what is written (see ``log.compaction.log_compaction``). The
child changes no file that is there, needs no lock, and may be killed at any moment.

Theory of operation. The first pass reads the dirty part and notes the newest offset of each key
(``newest``), as far as memory allows. The second pass writes all segments anew, without the
records for which a newer one of the same key is known (``retained_records``), and joins what
became small (``rewriter``). Offsets never change: where records are gone, a record batch says
which are there.

Of this package the broker imports ``messages`` only, which needs no Arrow.
"""
