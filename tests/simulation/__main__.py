"""Runs schedules, or replays one: ``python -m tests.simulation SCHEDULES SEED``, or ``SEED``."""

from __future__ import annotations

import logging
import sys
import time
import traceback

from tests.simulation.world import World


def run(seed: int) -> World | None:
    """Runs one schedule; returns it if it has failed."""
    world = World(seed)
    try:
        world.run()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - a disk whose power is cut raises one, too
        say(f"seed {seed}: {type(error).__name__}: {error}")
        world.failure = error
        return world
    return None


def replay(seed: int) -> int:
    """Runs a schedule again, and tells its steps if it fails."""
    world = run(seed)
    if world is None:
        say(f"seed {seed} holds")
        return 0
    say("\n".join(world.trace))
    traceback.print_exception(world.failure)
    return 1


def main(schedules: int, first: int) -> int:
    began, failed = time.monotonic(), 0
    for number in range(1, schedules + 1):
        failed += run(first + number - 1) is not None
        if number % 1_000 == 0:
            say(f"{number} schedules, {failed} failed, {time.monotonic() - began:.0f} s")
    say(f"{schedules} schedules from seed {first}: {failed} failed")
    return 1 if failed else 0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    logging.getLogger("spark_logbus").setLevel(logging.ERROR)
    numbers = [int(each) for each in sys.argv[1:]]
    sys.exit(replay(*numbers) if len(numbers) == 1 else main(*numbers))
