"""A web service that logs each of its requests as a JSON record of a topic.

The log never fails a request, nor makes one wait for room: a record that finds the producer's
buffer full, because brokers are away or too slow, is dropped and counted.
"""

from __future__ import annotations

import argparse
import json
import signal
import threading
import time
import uuid
from collections import Counter

from flask import Flask, Response, g, request
from werkzeug.serving import make_server

from spark_logbus.client import Admin, Cluster, Producer, ProducerConfig, RecordFuture
from spark_logbus.errors import DeliveryFailedError, LogbusError, RequestTimeoutError
from spark_logbus.model import Acks
from spark_logbus.zookeeper import add_cluster_options

PRODUCTS = {1: "anchor", 2: "buoy", 3: "compass"}


class AccessLog:
    """Publishes one record for each request of ``app``. Thread-safe.

    The key is the path: the requests of one path stay in order, and one consumer of a group sees
    all of them. The producer should have ``max_block_ms=0``, so that a full buffer holds up nobody.
    """

    def __init__(self, app: Flask, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        app.before_request(self._begin)
        app.after_request(self._publish)  # also of what an exception has become

    @property
    def summary(self) -> str:
        """The fate of the records so far, such as ``12 published, 0 failed, 3 dropped``."""
        with self._lock:
            return ", ".join(f"{self._counts[k]} {k}" for k in ("published", "failed", "dropped"))

    def _begin(self) -> None:
        g.began = time.monotonic()
        g.request_id = request.headers.get("X-Request-ID") or uuid.uuid4().hex

    def _publish(self, response: Response) -> Response:
        response.headers["X-Request-ID"] = g.request_id
        fields = {
            "method": request.method,
            "path": request.path,
            "status": response.status_code,
            "client": request.remote_addr,
            "ms": round((time.monotonic() - g.began) * 1000, 3),
        }
        try:
            future = self._producer.send(
                self._topic,
                json.dumps(fields).encode(),
                key=request.path.encode(),
                headers={"request-id": g.request_id.encode()},
            )
        except LogbusError:  # most often BufferExhaustedError; whatever it is, the request goes on
            self._count("dropped")
        else:
            future.add_done_callback(self._settled)
        return response

    def _settled(self, future: RecordFuture) -> None:
        self._count("failed" if future.exception() else "published")

    def _count(self, fate: str) -> None:
        with self._lock:
            self._counts[fate] += 1


def create_app() -> Flask:
    app = Flask(__name__)

    @app.get("/")
    def products() -> dict[str, list[int]]:
        return {"products": list(PRODUCTS)}

    @app.get("/products/<int:number>")
    def product(number: int) -> tuple[dict[str, str], int]:
        if number in PRODUCTS:
            return {"name": PRODUCTS[number]}, 200
        return {"error": f"There is no product {number}."}, 404

    return app


def serve(app: Flask, host: str, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    server = make_server(host, port, app, threaded=True)
    print(f"Listening on http://{host}:{server.port}", flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    while not ended.wait(1.0):  # Python meets signals between two waits at the latest
        pass
    server.shutdown()
    server.server_close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topic")
    add_cluster_options(parser, default=None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one")
    parser.add_argument("--buffer-bytes", type=int, default=16 << 20, help="for unsent records")
    parser.add_argument("--flush-s", type=float, default=5.0, help="patience with brokers, at exit")
    options = parser.parse_args()

    config = ProducerConfig(
        acks=Acks.WRITTEN,
        max_block_ms=0,  # a full buffer drops the record instead of holding up the request
        batch_bytes=64 << 10,
        buffer_bytes=options.buffer_bytes,
    )
    with Cluster.from_zookeeper(options.zookeeper) as cluster:
        Admin(cluster).describe([options.topic], ends=False)  # a wrong name is better met here
        producer = Producer(cluster, config)  # one for the process; where it forks, one for each
        producer.send_many(options.topic, [])  # looks the topic up, so that no request has to
        app = create_app()
        access_log = AccessLog(app, producer, options.topic)
        try:
            serve(app, options.host, options.port)
        finally:
            try:
                producer.close(options.flush_s)
            except (DeliveryFailedError, RequestTimeoutError) as error:
                print(f"Some requests may not be in the log: {error}", flush=True)
            print(f"Access log: {access_log.summary}.", flush=True)


if __name__ == "__main__":
    main()
