"""A web service that takes orders, and answers when they are on disk, in a topic with a schema.

The answer to ``POST /orders`` has the order's place in the topic. While the brokers are away it is
503 after some seconds, and the caller tries again.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field

from spark_logbus.client import Admin, AsyncProducer, Cluster, ProducerConfig
from spark_logbus.errors import LogbusError
from spark_logbus.zookeeper import add_cluster_options

# A request must not wait as long as a program that has time, whose defaults are minutes.
CONFIG = ProducerConfig(linger_ms=1, max_block_ms=1_000, delivery_timeout_ms=5_000)


class Order(BaseModel):
    customer: Annotated[str, Field(min_length=1)]
    product: int
    quantity: Annotated[int, Field(ge=1)] = 1


class Place(BaseModel):
    """The place of an order in the topic."""

    partition: int
    offset: int | None


def create_app(topic: str, zookeeper: str | None = None) -> FastAPI:
    """``zookeeper`` is by default that of LOGBUS_ZOOKEEPER, or this machine's."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # In each worker process, and once for all of its requests. To connect may wait, so a thread
        # does it, and the event loop goes on.
        cluster = await asyncio.to_thread(Cluster.from_zookeeper, zookeeper)
        try:
            await asyncio.to_thread(Admin(cluster).describe, [topic], ends=False)  # is it there?
            async with AsyncProducer(cluster, CONFIG) as producer:
                app.state.producer = producer
                yield
        finally:
            cluster.close()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def take_order(order: Order, request: Request) -> Place:
        producer: AsyncProducer = request.app.state.producer
        key = order.customer.encode()  # the orders of a customer stay in order
        try:
            placed = await producer.send(topic, order.model_dump(), key=key)
        except LogbusError as error:
            # After a timeout the order may be there all the same: give it an id of the caller's
            # where that matters.
            raise HTTPException(503, str(error), {"Retry-After": "5"}) from error
        return Place(partition=placed.partition, offset=placed.offset)

    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("topic")
    add_cluster_options(parser, default=None)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001, help="0: any free one")
    options = parser.parse_args()
    # uvicorn ends in order at SIGTERM, and then lets the program have the signal as well.
    signal.signal(signal.SIGTERM, lambda *_: None)
    uvicorn.run(create_app(options.topic, options.zookeeper), host=options.host, port=options.port)


if __name__ == "__main__":
    main()
