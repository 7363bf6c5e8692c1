"""Avro's own reader in Java, from the jars that PySpark brings, in processes of its own.

``python -m tests.servers.avro_java`` holds the JVM and answers a line of JSON with another one. It
is a process apart from the tests', in which PySpark changes how py4j tells exceptions.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple


class ReadByJava(NamedTuple):
    """``datums`` are those of the reader's schema, None for what is refused; ``compatible`` is what
    Avro's check of the two schemas says."""

    datums: list[bytes | None]
    compatible: bool


class JavaAvro:
    """Reads datums with two schemas, as programs on Java do. Not thread-safe."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._input, self._output = process.stdin, process.stdout

    def read(self, datums: Sequence[bytes], writer: Any, reader: Any) -> ReadByJava:
        """``datums`` of the schema ``writer``, read under ``reader`` and written again."""
        asked = {"writer": writer, "reader": reader, "datums": [one.hex() for one in datums]}
        self._input.write(json.dumps(asked) + "\n")
        self._input.flush()
        answer = json.loads(self._output.readline())
        found = [None if one is None else bytes.fromhex(one) for one in answer["datums"]]
        return ReadByJava(found, answer["compatible"])


@contextmanager
def java_avro() -> Iterator[JavaAvro]:
    """Avro's reader while the block lasts."""
    with subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield JavaAvro(process)
        assert process.stdin is not None
        process.stdin.close()


def main() -> None:
    """Answer each line of the input."""
    import pyspark
    from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
    from py4j.protocol import Py4JJavaError

    from spark_logbus.local.java import java_executable

    jars = Path(pyspark.__file__).parent / "jars"
    [py4j] = jars.glob("py4j-*.jar")
    port = launch_gateway(
        jarpath=str(py4j),
        classpath=str(jars / "*"),
        java_path=str(java_executable()),
        die_on_exit=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))
    avro = gateway.jvm.org.apache.avro

    def read(datum: bytes, writer: Any, reader: Any) -> str | None:
        decoder = avro.io.DecoderFactory.get().binaryDecoder(datum, None)
        try:
            found = avro.generic.GenericDatumReader(writer, reader).read(None, decoder)
        except Py4JJavaError as error:
            if error.java_exception.getClass().getName() == "org.apache.avro.AvroTypeException":
                return None
            raise
        out = gateway.jvm.java.io.ByteArrayOutputStream()
        encoder = avro.io.EncoderFactory.get().binaryEncoder(out, None)
        avro.generic.GenericDatumWriter(reader).write(found, encoder)
        encoder.flush()
        return bytes(out.toByteArray()).hex()

    for line in sys.stdin:
        asked = json.loads(line)
        writer, reader = (
            avro.Schema.Parser().parse(json.dumps(asked[name])) for name in ("writer", "reader")
        )
        pair = avro.SchemaCompatibility.checkReaderWriterCompatibility(reader, writer)
        answer = {
            "datums": [read(bytes.fromhex(one), writer, reader) for one in asked["datums"]],
            "compatible": str(pair.getType()) == "COMPATIBLE",
        }
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    gateway.shutdown()


if __name__ == "__main__":
    main()
