"""Certificates of an authority of the tests' own."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_logbus.security.certificates import Pair, issue, new_authority


@dataclass(frozen=True)
class Files:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """An authority that writes what it signs into files."""

    def __init__(self, directory: Path, name: str = "tests") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._pair = new_authority(name, days=1)
        self.ca = self._pair.certificate
        self.ca_file = directory / "ca.pem"
        self.ca_file.write_text(self.ca)

    def issue(self, name: str, *hosts: str, days: int = 1) -> Pair:
        return issue(self._pair, name, hosts=hosts, days=days)

    def files(self, name: str, *hosts: str, days: int = 1) -> Files:
        """Writes a certificate and its key, over those of that name, and says where they are."""
        pair = self.issue(name, *hosts, days=days)
        files = Files(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        files.certificate.write_text(pair.certificate)
        files.key.write_text(pair.key)
        return files
