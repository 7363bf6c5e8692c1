"""The audit: counts of records by window, published by programs that append, copy and read them,
and compared with what is there."""

from typing import TYPE_CHECKING

from spark_logbus.lazy_names import lazy_names

if TYPE_CHECKING:
    from spark_logbus.audit.auditing import Question, audit
    from spark_logbus.audit.comparison import AuditResult, WindowResult
    from spark_logbus.audit.interceptor import AuditInterceptor
    from spark_logbus.audit.report import AUDIT_TOPIC, Tier
    from spark_logbus.audit.reporter import AuditConfig, AuditReporter
    from spark_logbus.audit.verdicts import Status, Verdict
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "auditing": "Question audit",
            "comparison": "AuditResult WindowResult",
            "interceptor": "AuditInterceptor",
            "report": "AUDIT_TOPIC Tier",
            "reporter": "AuditConfig AuditReporter",
            "verdicts": "Status Verdict",
        },
    )

__all__ = [
    "AUDIT_TOPIC",
    "AuditConfig",
    "AuditInterceptor",
    "AuditReporter",
    "AuditResult",
    "Question",
    "Status",
    "Tier",
    "Verdict",
    "WindowResult",
    "audit",
]
