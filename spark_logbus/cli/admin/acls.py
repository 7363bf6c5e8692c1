"""``logbus acls``: what principals may do."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, ZooKeeper, opened_session
from spark_logbus.cli.output import Column, Table, console
from spark_logbus.errors import ConfigError
from spark_logbus.security.acls import EVERYBODY, AccessRules, Operation, Resource, Rule
from spark_logbus.security.principals import Principal

app = typer.Typer(
    help="Add, list and remove access rules, and ask what they say.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_CLIENT = "logbus-acls"
Who = Annotated[
    str,
    typer.Argument(
        help="user:NAME, certificate:NAME, local:NAME, or * for everybody.", metavar="PRINCIPAL"
    ),
]
What = Annotated[
    str,
    typer.Argument(
        help="read, write, create, alter, delete, describe or all; several with commas.",
        metavar="OPERATIONS",
    ),
]
Kind = Annotated[
    str,
    typer.Argument(
        help="topic, group, subject, writer, lock, mirror or cluster.", metavar="RESOURCE"
    ),
]
Name = Annotated[
    str, typer.Argument(help="Its name; with * at the end a prefix; * for all.", metavar="NAME")
]
Deny = Annotated[bool, typer.Option("--deny", help="Deny it, whatever other rules allow.")]


@app.command("add")
def add(
    principal: Who,
    operations: What,
    resource: Kind,
    name: Name = "*",
    deny: Deny = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Let a principal do something, or deny it.

    \b
    Example:
      logbus acls add user:anna read,describe topic 'orders*'
      logbus acls add user:etl read group nightly
      logbus acls add '*' write topic audit --deny
    """
    from spark_logbus.coordination.security.access_rules import RuleRegistry

    rules = _rules(principal, operations, resource, name, deny=deny)
    with opened_session(zookeeper, _CLIENT) as session:
        new = RuleRegistry(session).add(rules)
    _tell(new, rules, "From now on", "It was so before")


@app.command("remove")
def remove(
    principal: Who,
    operations: What,
    resource: Kind,
    name: Name = "*",
    deny: Deny = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Remove a rule. Requests that wait by it end.

    \b
    Example:
      logbus acls remove user:anna read topic 'orders*'
    """
    from spark_logbus.coordination.security.access_rules import RuleRegistry

    rules = _rules(principal, operations, resource, name, deny=deny)
    with opened_session(zookeeper, _CLIENT) as session:
        gone = RuleRegistry(session).remove(rules)
    _tell(gone, rules, "It is no rule any more", "There is no such rule")


@app.command("list")
def list_(
    principal: Annotated[
        str | None,
        typer.Argument(help="Only rules about that one.", metavar="PRINCIPAL", show_default=False),
    ] = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """List access rules.

    \b
    Example:
      logbus acls list
      logbus acls list user:anna --json
    """
    if principal not in (None, EVERYBODY):
        Principal.parse(principal)  # a name without its kind would seem to have no rules
    rows = Table(
        Column("resource"), Column("name"), Column("principal"), Column("operation"), Column("rule")
    )
    for rule in _all(zookeeper).rules:
        if principal in (None, rule.principal):
            rows.add(
                {
                    "resource": rule.resource,
                    "name": rule.name,
                    "principal": rule.principal,
                    "operation": rule.operation,
                    "rule": "allow" if rule.allow else "deny",
                }
            )
    rows.print(
        as_json=as_json,
        empty="There are no rules: principals whom brokers name super may do all."
        if principal is None
        else f"There are no rules about {principal}.",
    )


@app.command("check")
def check(
    principal: Annotated[
        str,
        typer.Argument(help="user:NAME, certificate:NAME or local:NAME.", metavar="PRINCIPAL"),
    ],
    operation: Annotated[str, typer.Argument(help="One operation.", metavar="OPERATION")],
    resource: Kind,
    name: Name = "*",
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Tell if a principal may do something, and by which rules; exit code 1 if not.

    \b
    Example:
      logbus acls check user:anna read topic orders
    """
    if operation not in {each.value for each in Operation}:
        raise ConfigError(
            f"{operation!r} is no operation to ask about; use one of "
            f"{', '.join(each.value for each in Operation)}."
        )
    who = Principal.parse(principal)
    _rules(principal, operation, resource, name, deny=False)
    if name.endswith("*") and resource != Resource.CLUSTER.value:
        raise ConfigError(
            f"{name!r} is many, about which rules may differ; ask about one {resource}, by its "
            "whole name."
        )
    rules = _all(zookeeper)
    asked = (who, Operation(operation), Resource(resource), name)
    is_allowed = rules.allows(*asked)
    verb = "may" if is_allowed else "may not"
    console().print(f"{principal} {verb} {operation} the {resource} {name}.")
    reasons = rules.reasons(*asked)
    for reason in reasons:
        console().print(f"  {reason}")
    if not reasons:
        console().print("  No rule is about that, so only super principals may.")
    if not is_allowed:
        raise typer.Exit(1)


def _rules(principal: str, operations: str, resource: str, name: str, *, deny: bool) -> list[Rule]:
    return [
        Rule.checked(
            resource=resource,
            name=name,
            principal=principal,
            operation=each.strip(),
            allow=not deny,
        )
        for each in operations.split(",")
    ]


def _tell(changed: list[Rule], asked: list[Rule], done: str, otherwise: str) -> None:
    for rule in asked:
        console().print(f"{done if rule in changed else otherwise}: {rule}.")


def _all(zookeeper: str) -> AccessRules:
    from spark_logbus.coordination.security.access_rules import RuleRegistry

    with opened_session(zookeeper, _CLIENT) as session:
        return RuleRegistry(session).all()
