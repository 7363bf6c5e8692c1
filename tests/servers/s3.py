"""S3 as a server of its own on loopback, for tests of tables there.

It keeps objects in memory, checks no signature, and knows conditional writes, as S3 does; see
``s3_program``.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_logbus.local.processes import spawn, stop
from tests.helpers import wait_until
from tests.servers.ports import reserved_port

ACCESS_KEY = "an-access-key"
SECRET_KEY = "a secret key"
REGION = "us-east-1"
_START_S = 60.0
_STOP_S = 10.0


@dataclass(frozen=True)
class S3:
    """A running server with one bucket. ``endpoint`` is its URL."""

    endpoint: str
    bucket: str

    def uri(self, key: str) -> str:
        return f"s3://{self.bucket}/{key}"

    @property
    def delta_options(self) -> dict[str, str]:
        """Options of the storage, as ``deltalake`` names them."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_allow_http": "true",
            "aws_access_key_id": ACCESS_KEY,
            "aws_secret_access_key": SECRET_KEY,
            "aws_region": REGION,
        }

    @property
    def iceberg_properties(self) -> dict[str, str]:
        """Properties of the storage, as ``pyiceberg`` names them."""
        return {
            "s3.endpoint": self.endpoint,
            "s3.access-key-id": ACCESS_KEY,
            "s3.secret-access-key": SECRET_KEY,
            "s3.region": REGION,
        }


@contextmanager
def s3(directory: Path) -> Iterator[S3]:
    """Runs a server and yields it when it has its bucket; its log is in ``directory``."""
    with reserved_port() as port:
        log = directory / "s3.log"
        command = [sys.executable, "-m", "tests.servers.s3_program", str(port)]
        process = spawn(command, output=log, cwd=Path(__file__).parents[2])
        made = S3(f"http://127.0.0.1:{port}", "lake")

        def has_bucket() -> bool:
            assert process.poll() is None, log.read_text(errors="replace")[-3000:]
            asked = urllib.request.Request(f"{made.endpoint}/{made.bucket}", method="PUT")
            try:
                with urllib.request.urlopen(asked, timeout=_START_S) as answer:
                    return bool(answer.status == 200)
            except urllib.error.URLError:
                return False

        try:
            wait_until(has_bucket, deadline_s=_START_S, message="the S3 server to make a bucket")
            yield made
        finally:
            stop(process, _STOP_S)
