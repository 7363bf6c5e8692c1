"""``python -m spark_logbus.compactor JOB_FILE``: reports go to standard output."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

from spark_logbus.compactor.compact import compact
from spark_logbus.compactor.messages import CompactorReport, Failed, decode_job, encode
from spark_logbus.compactor.reading import DamagedSegmentError
from spark_logbus.errors import LogbusError

_NICENESS: Final = 15  # whatever else the machine has to do goes first


def main(arguments: list[str]) -> int:
    os.nice(_NICENESS)
    job = decode_job(Path(arguments[0]).read_bytes())
    try:
        compact(job, _report)
    except DamagedSegmentError as error:
        _report(Failed(str(error), damaged=error.source.base_offset))
        return 1
    except (LogbusError, OSError) as error:
        _report(Failed(str(error)))
        return 1
    return 0


def _report(report: CompactorReport) -> None:
    sys.stdout.buffer.write(encode(report))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
