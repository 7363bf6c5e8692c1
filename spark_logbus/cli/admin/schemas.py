"""``logbus schemas``: list, show, register, check, compare and delete schemas; what is to hold."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_logbus.cli.admin.schema_files import read_schema
from spark_logbus.cli.completion import subject_names
from spark_logbus.cli.options import DEFAULT_ZOOKEEPER, AsJson, Yes, ZooKeeper, opened_session
from spark_logbus.cli.output import (
    MARK,
    NUMBER,
    Column,
    Table,
    console,
    print_json,
)
from spark_logbus.errors import InvalidRequestError
from spark_logbus.plurals import plural

if TYPE_CHECKING:
    from spark_logbus.schemas.registry.registry import SchemaRegistry
    from spark_logbus.schemas.registry.subjects import Reference

app = typer.Typer(
    help="List, show, register, check, compare and delete schemas.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_CLIENT = "logbus-schemas"
_OF_A_TYPE = "NAME=SUBJECT:VERSION of a type that is defined in another subject; repeatable."
Subject = Annotated[
    str, typer.Argument(help="The subject.", metavar="SUBJECT", autocompletion=subject_names)
]
SubjectOrAll = Annotated[
    str | None,
    typer.Argument(
        help="The subject; without it, all that have none of their own.",
        metavar="SUBJECT",
        autocompletion=subject_names,
        show_default=False,
    ),
]
File = Annotated[Path, typer.Argument(help="The file with the schema, as JSON; -: standard input.")]
References = Annotated[
    list[str] | None, typer.Option("--reference", "-r", help=_OF_A_TYPE, metavar="REFERENCE")
]
Normalize = Annotated[
    bool, typer.Option("--normalize", help="Take schemas that mean the same for one.")
]


@app.command("list")
def list_(
    subject: Annotated[
        str | None,
        typer.Argument(
            help="A subject, to list its versions.",
            metavar="SUBJECT",
            autocompletion=subject_names,
            show_default=False,
        ),
    ] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="What is soft-deleted, too.")] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """All subjects, or the versions of one.

    \b
    Example:
      logbus schemas list
      logbus schemas list orders-value --json
    """
    from spark_logbus.schemas.registry import SchemaRegistry

    with opened_session(zookeeper, _CLIENT) as session:
        registry = SchemaRegistry(session)
        rows = (
            _subjects(registry, deleted=deleted)
            if subject is None
            else _versions(registry, subject, deleted=deleted)
        )
    rows.print(
        as_json=as_json, empty="There are no schemas; make one with `logbus schemas register`."
    )


def _subjects(registry: SchemaRegistry, *, deleted: bool) -> Table:
    from spark_logbus.schemas.registry.subjects import mode_in_force

    rows = Table(
        Column("subject"),
        Column("versions", NUMBER),
        Column("latest", NUMBER),
        Column("id", NUMBER),
        Column("compatibility"),
        Column("mode"),
    )
    settings = registry.settings()
    for subject in registry.matching():
        seen = subject.versions if deleted else subject.live
        if not seen:
            continue
        compatibility = subject.compatibility or settings.compatibility
        rows.add(
            {
                "subject": subject.name,
                "versions": len(seen),
                "latest": seen[-1].version,
                "id": seen[-1].schema_id,
                "compatibility": "BACKWARD" if compatibility is None else compatibility.name,
                "mode": mode_in_force(subject.mode, settings.mode).name,
            }
        )
    return rows


def _versions(registry: SchemaRegistry, name: str, *, deleted: bool) -> Table:
    rows = Table(
        Column("subject"),
        Column("version", NUMBER),
        Column("id", NUMBER),
        Column("bytes", NUMBER),
        Column("references", NUMBER),
        Column("deleted", MARK),
    )
    for each in registry.subject(name).seen(deleted=deleted):
        content = registry.by_id(each.schema_id)
        rows.add(
            {
                "subject": name,
                "version": each.version,
                "id": each.schema_id,
                "bytes": len(content.text.encode()),
                "references": len(content.references),
                "deleted": each.deleted,
            }
        )
    return rows


@app.command("show")
def show(
    subject: Annotated[
        str | None,
        typer.Argument(
            help="The subject.",
            metavar="SUBJECT",
            autocompletion=subject_names,
            show_default=False,
        ),
    ] = None,
    version: Annotated[
        str, typer.Option("--version", "-n", help="A number, or latest.", metavar="VERSION")
    ] = "latest",
    schema_id: Annotated[
        int | None, typer.Option("--id", help="By id, instead of by subject.", show_default=False)
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="With the types that it refers to.")
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """A schema, as JSON that Avro's libraries take.

    \b
    Example:
      logbus schemas show orders-value --version 3 > order.avsc
      logbus schemas show --id 17 --whole
    """
    from avro_columns.text import fingerprint
    from spark_logbus.schemas.avro_errors import logbus_errors
    from spark_logbus.schemas.registry.registry import RegisteredSchema, SchemaRegistry
    from spark_logbus.schemas.registry.subjects import parse_version

    if (subject is None) == (schema_id is None):
        raise typer.BadParameter("Give a subject or --id, one of the two.")
    with opened_session(zookeeper, _CLIENT) as session:
        registry = SchemaRegistry(session)
        if subject is not None:
            found = registry.version(subject, parse_version(version))
        else:
            assert schema_id is not None
            content = registry.by_id(schema_id)
            found = RegisteredSchema("", 0, schema_id, content.text, content.references)
        value = registry.avro(found.schema_id) if whole else json.loads(found.text)
        if as_json:
            with logbus_errors:
                number = fingerprint(registry.parsed(found.schema_id))
            print_json(
                {
                    "subject": found.subject or None,
                    "version": found.version or None,
                    "id": found.schema_id,
                    "schema": value,
                    "references": list(map(asdict, found.references)),
                    "fingerprint": number,
                }
            )
            return
    console().print(json.dumps(value, indent=2, ensure_ascii=False))


@app.command("register")
def register(
    subject: Subject,
    file: File,
    reference: References = None,
    normalize: Normalize = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Register a schema, if it is not registered yet.

    \b
    Example:
      logbus schemas register orders-value order.avsc -r shop.Item=items-value:2
    """
    from spark_logbus.schemas.registry import SchemaRegistry

    text, references = read_schema(file), _references(reference)
    with opened_session(zookeeper, _CLIENT) as session:
        made = SchemaRegistry(session).register(subject, text, references, normalize=normalize)
    if as_json:
        print_json(
            {
                "subject": made.subject,
                "version": made.version,
                "id": made.schema_id,
                "references": list(map(asdict, made.references)),
            }
        )
    else:
        console().print(
            f"The schema is version {made.version} of {subject}, with the id {made.schema_id}."
        )


@app.command("check")
def check(
    subject: Subject,
    file: File,
    version: Annotated[
        str | None,
        typer.Option("--version", "-n", help="Compare with this one only.", metavar="VERSION"),
    ] = None,
    reference: References = None,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Check whether a schema could be registered; exit code 1 if not, and what stands against it.

    \b
    Example:
      logbus schemas check orders-value order.avsc
    """
    from spark_logbus.schemas.registry import SchemaRegistry
    from spark_logbus.schemas.registry.subjects import parse_version

    text, references = read_schema(file), _references(reference)
    with opened_session(zookeeper, _CLIENT) as session:
        registry = SchemaRegistry(session)
        faults = registry.check(
            subject,
            text,
            references,
            version=None if version is None else parse_version(version),
        )
        level = registry.compatibility(subject).name
    rows = Table(
        Column("rule", of="fault.rule.name"),
        Column("version", NUMBER),
        Column("reader", of=lambda each: "new" if each.reader_is_new else "old"),
        Column("place", of=lambda each: each.fault.place or None),
        Column("message", of="fault.message"),
    )
    rows.fill(faults).print(
        as_json=as_json, empty=f"The schema keeps the compatibility {level} of {subject}."
    )
    if faults:
        raise typer.Exit(1)


@app.command("diff")
def diff(
    subject: Subject,
    older: Annotated[
        str, typer.Argument(help="The version before; default: the one before the latest.")
    ] = "previous",
    newer: Annotated[str, typer.Argument(help="The version after.")] = "latest",
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Show what changed between two versions of a subject, place by place.

    \b
    Example:
      logbus schemas diff orders-value
      logbus schemas diff orders-value 1 3
    """
    from avro_columns.compatibility import faults
    from avro_columns.differences import differences
    from spark_logbus.schemas.avro_errors import logbus_errors
    from spark_logbus.schemas.registry import SchemaRegistry
    from spark_logbus.schemas.registry.subjects import parse_version

    with opened_session(zookeeper, _CLIENT) as session:
        registry = SchemaRegistry(session)
        found = registry.subject(subject)
        after = found.find(parse_version(newer))
        if older == "previous":
            earlier = [each for each in found.live if each.version < after.version]
            if not earlier:
                raise InvalidRequestError(
                    f"Version {after.version} of {subject!r} is the first; there is nothing to "
                    "compare it with."
                )
            before = earlier[-1]
        else:
            before = found.find(parse_version(older))
        old, new = (registry.parsed(each.schema_id) for each in (before, after))
    place = Column("place", of=lambda each: each.place or None)
    rows = Table(place, Column("before"), Column("after")).fill(differences(old, new))
    if as_json:
        rows.print(as_json=True)
        return
    console().print(f"{subject}: version {before.version} to version {after.version}")
    rows.print(empty="Nothing has changed but the layout.")
    for reader, writer, names in (
        (new, old, (after, before)),
        (old, new, (before, after)),
    ):
        with logbus_errors:
            can = "can" if not faults(reader, writer) else "cannot"
        console().print(
            f"Version {names[0].version} {can} read what is written with version "
            f"{names[1].version}."
        )


@app.command("delete")
def delete(
    subject: Subject,
    version: Annotated[
        str | None,
        typer.Option("--version", "-n", help="This version only.", metavar="VERSION"),
    ] = None,
    permanent: Annotated[
        bool,
        typer.Option(
            "--permanent", help="For good, after a soft deletion. Data of its id is lost."
        ),
    ] = False,
    yes: Yes = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
) -> None:
    """Hide a subject or one of its versions; its ids go on to be known, unless it is permanent.

    \b
    Example:
      logbus schemas delete orders-value --version 3
      logbus schemas delete orders-value --permanent --yes
    """
    from spark_logbus.schemas.registry import SchemaAdministration
    from spark_logbus.schemas.registry.subjects import parse_version

    if permanent and not yes:
        typer.confirm(
            "Records that were written with a schema that is deleted permanently cannot be read "
            f"any more. Delete of {subject}?",
            abort=True,
            err=True,
        )
    with opened_session(zookeeper, _CLIENT) as session:
        administration = SchemaAdministration(session)
        if version is None:
            gone = administration.delete_subject(subject, permanent=permanent)
        else:
            gone = [
                administration.delete_version(subject, parse_version(version), permanent=permanent)
            ]
    how = "deleted permanently" if permanent else "soft-deleted"
    console().print(
        f"{plural(len(gone), 'version')} of {subject} {how}: {', '.join(map(str, gone))}."
    )


@app.command("config")
def config(
    subject: SubjectOrAll = None,
    set_: Annotated[
        str | None,
        typer.Option(
            "--set",
            help="NONE, BACKWARD, FORWARD, FULL, or one of the last three with _TRANSITIVE.",
            metavar="COMPATIBILITY",
        ),
    ] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Go back to the default.")] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """The compatibility that a subject is to keep; with --set or --unset, change it.

    \b
    Example:
      logbus schemas config
      logbus schemas config orders-value --set FULL_TRANSITIVE
    """
    from avro_columns.compatibility import Compatibility
    from spark_logbus.schemas.avro_errors import logbus_errors
    from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry

    _one_of(set_, unset)
    with opened_session(zookeeper, _CLIENT) as session:
        administration = SchemaAdministration(session)
        if set_ is not None:
            with logbus_errors:
                compatibility = Compatibility.named(set_)
            administration.set_compatibility(subject, compatibility)
        elif unset:
            administration.unset_compatibility(subject)
        found = SchemaRegistry(session).compatibility(subject).name
    _print_setting("compatibility", subject, found, as_json=as_json)


@app.command("mode")
def mode(
    subject: SubjectOrAll = None,
    set_: Annotated[
        str | None,
        typer.Option(
            "--set", help="READWRITE, READONLY, READONLY_OVERRIDE or IMPORT.", metavar="MODE"
        ),
    ] = None,
    unset: Annotated[bool, typer.Option("--unset", help="Go back to the default.")] = False,
    force: Annotated[
        bool, typer.Option("--force", help="IMPORT though there are schemas already.")
    ] = False,
    zookeeper: ZooKeeper = DEFAULT_ZOOKEEPER,
    as_json: AsJson = False,
) -> None:
    """Show who may register under a subject; with --set or --unset, change it.

    \b
    Example:
      logbus schemas mode orders-value --set READONLY
    """
    from spark_logbus.schemas.registry import SchemaAdministration, SchemaRegistry
    from spark_logbus.schemas.registry.subjects import Mode

    _one_of(set_, unset)
    with opened_session(zookeeper, _CLIENT) as session:
        administration = SchemaAdministration(session)
        if set_ is not None:
            administration.set_mode(subject, Mode.named(set_), force=force)
        elif unset:
            administration.unset_mode(subject)
        found = SchemaRegistry(session).mode(subject).name
    _print_setting("mode", subject, found, as_json=as_json)


# -- help ---------------------------------------------------------------------------------


def _print_setting(what: str, subject: str | None, value: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"subject": subject, what: value})
    else:
        whose = "all subjects without their own" if subject is None else subject
        console().print(f"The {what} of {whose} is {value}.")


def _one_of(set_: str | None, unset: bool) -> None:
    if set_ is not None and unset:
        raise typer.BadParameter("Give --set or --unset, not both.")


def _references(given: list[str] | None) -> list[Reference]:
    from spark_logbus.schemas.registry.subjects import Reference, parse_version

    found = []
    for text in given or []:
        name, equals, target = text.partition("=")
        subject, _, version = target.rpartition(":")
        if not (name and equals and subject):
            raise typer.BadParameter(f"A reference is NAME=SUBJECT:VERSION, got {text!r}.")
        found.append(Reference(name, subject, parse_version(version)))
    return found
