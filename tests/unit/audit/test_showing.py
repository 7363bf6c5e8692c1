"""What is shown of an audit."""

from __future__ import annotations

from spark_logbus.audit.comparison import AuditResult, WindowResult
from spark_logbus.audit.counts import WindowTally
from spark_logbus.audit.showing import as_objects
from spark_logbus.audit.verdicts import Status, Verdict


def window(start_us: int, status: Status) -> WindowResult:
    return WindowResult(
        start_us=start_us,
        counted=WindowTally(),
        in_doubt=0,
        found=WindowTally(),
        verdict=Verdict(status, 1),
        counters=(),
        copies=(),
        awaits_report=False,
    )


def test_quiet_objects_are_of_windows_that_are_not_complete_and_the_sum_is_of_all() -> None:
    windows = (window(0, Status.COMPLETE), window(1, Status.MISSING), window(2, Status.COMPLETE))
    result = AuditResult(topic="t", window_us=1, windows=windows, runs=())
    *every, summary = as_objects(result)
    assert [each["window_us"] for each in every] == [0, 1, 2]
    *shown, of_all = as_objects(result, only_findings=True)
    assert [each["window_us"] for each in shown] == [1]
    assert of_all == summary
    assert of_all["windows"] == 3
