"""``logbus accept-clock``: an operator tells a broker that its machine's clock is right."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Annotated, Final

import typer

from spark_logbus.cli.inspect.directories import holds_no_logs
from spark_logbus.cli.options import Execute
from spark_logbus.cli.output import console
from spark_logbus.clock import SystemClock
from spark_logbus.times import US_PER_S, show_moment

_TAKEN_WITHIN_S: Final = 10.0
_LOOK_EVERY_S: Final = 0.1


def accept_clock(
    data: Annotated[Path, typer.Argument(help="The data_dir of the broker.")],
    execute: Execute = False,
) -> None:
    """Tell a broker that its clock is right, though it is more than a day off what was expected.

    Until then the broker deletes by age late rather than early. Check the machine's clock first.
    Run this on that machine, as the broker's user; the broker may be running or stopped. A dry
    run unless --execute is given.

    \b
    Example:
      logbus accept-clock logbus-data/broker-1/data --execute
    """
    from spark_logbus.log import OS_FILES
    from spark_logbus.log.clock_file import off_us, write_accepted
    from spark_logbus.log.guarded_clock import JumpGuardedClock
    from spark_logbus.log.inspect import in_use, list_directory

    path = data.absolute()
    try:
        found = list_directory(OS_FILES, path)
    except OSError as error:
        raise typer.BadParameter(f"Cannot read {data}: {error.strerror}.") from error
    if found is None or found.path != path:
        raise typer.BadParameter(holds_no_logs(data))
    out = console()
    now_us = SystemClock().now_us()
    ahead_us = off_us(OS_FILES, path, now_us)
    if abs(ahead_us) <= JumpGuardedClock.LARGEST_US:
        out.print("The broker believes the clock, or will within an hour: nothing is to be done.")
        return
    shown, seen = (show_moment(us // US_PER_S * US_PER_S) for us in (now_us, now_us - ahead_us))
    days = abs(ahead_us) / JumpGuardedClock.LARGEST_US
    way = "ahead of" if ahead_us > 0 else "behind"
    out.print(
        f"The clock shows {shown}. That is {days:,.1f} days {way} the last time that the broker "
        f"goes by, {seen}."
    )
    if not execute:
        out.print(
            "Dry run: ages would count by that clock from now on, and what is older than its "
            "topic's retention would be deleted. Nothing was changed; if the clock is right, add "
            "--execute to do it."
        )
        return
    write_accepted(OS_FILES, path, now_us)
    if not in_use(path):
        out.print("Accepted: a start of the broker within a day goes by the clock.")
    elif _is_taken(path):
        out.print("Accepted: the broker goes by the clock.")
    else:
        out.print("Accepted, and not heard by the broker yet; see its log.")


def _is_taken(path: Path) -> bool:
    """Wait for the broker to take the word away."""
    from spark_logbus.log.disk import names

    clock, pause = SystemClock(), threading.Event()
    deadline = clock.monotonic() + _TAKEN_WITHIN_S
    while (path / names.CLOCK_ACCEPTED).exists():
        if clock.monotonic() > deadline:
            return False
        pause.wait(_LOOK_EVERY_S)
    return True
