"""The documents agree with the code: generated parts are fresh, and each claim names its test."""

from __future__ import annotations

import ast
import builtins
import csv
import os
import re
import subprocess
import sys
from collections import defaultdict
from datetime import date
from functools import cache
from pathlib import Path

import pytest

from scripts.docs import CLIENTS, GENERATED, NAMED, ROOT, TABLES, files
from spark_logbus.cli.app import VERBS
from spark_logbus.datasource import options as source
from spark_logbus.sink import options as sink

DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *sorted(ROOT.glob("*/README.md")), *sorted(DOCS.rglob("*.md"))]
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s]+)\)")


def prose(page: Path) -> list[str]:
    """The lines of a page outside of code."""
    return re.sub(r"(?ms)^```.*?^```$", "", page.read_text()).splitlines()


def anchors(page: Path) -> set[str]:
    """Returns what ``#...`` can name in a page: headings, as GitHub spells them, and marks."""
    headings = [line.lstrip("# ") for line in prose(page) if line.startswith("#")]
    slugs = {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', page.read_text()))


def rows(page: str, header: str) -> list[str]:
    table = [line for line in (DOCS / page).read_text().splitlines() if line[:1] == "|"]
    return [row for row in table if not row.startswith((f"| {header}", "|---"))]


def test_generated_parts_are_as_scripts_docs_writes_them() -> None:
    stale = [str(path) for path, text in files() if path.read_text() != text]
    assert stale == [], "run scripts/docs"


def test_every_setting_metric_and_verb_has_a_place_in_a_page() -> None:
    placed = {name for page in PAGES for _, name, _ in GENERATED.findall(page.read_text())}
    assert placed == {
        "client-metrics",
        "metrics",
        "request-rights",
        "tests",
        *(f"{name}-settings" for name in (*TABLES, *CLIENTS)),
        *(f"command-{verb}" for verb in VERBS),
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for text, link in LINK.findall("\n".join(prose(page))):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link
        if text.startswith("test_"):
            assert f"def {text}(" in target.read_text(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_prose_is_wrapped(page: Path) -> None:
    long = [
        line
        for line in prose(page)
        if len(line) > 100 and not line.startswith(("|", "[")) and " " in line.strip("-* ")
    ]
    assert long == []


def failures() -> dict[str, str]:
    """Returns the text under each heading of the page on failures."""
    page = (DOCS / "failures.md").read_text().partition("<!-- generated: tests -->")[0]
    parts = re.split(r"^#{2,3} (.*)\n", page, flags=re.M)
    return {
        heading: text
        for heading, text in zip(parts[1::2], parts[2::2], strict=True)
        if text.strip()
    }


def test_every_failure_has_a_heading_and_three_points() -> None:
    page = (DOCS / "failures.md").read_text()
    assert len(failures()) == page.count("\n### ") >= 215
    form = re.compile(
        r"\s+- \*\*Fault:\*\* .*?\n- \*\*logbus:\*\* .*?\n- \*\*Tests:\*\*\s+\[", re.S
    )
    assert [heading for heading, text in failures().items() if not form.match(text)] == []


def test_every_scenario_of_the_spark_source_has_a_test() -> None:
    scenarios = rows("scenarios.md", "What a user")
    assert len(scenarios) > 40
    assert [row for row in scenarios if not NAMED.search(row) and "](../tests/" not in row] == []


def test_results_of_benchmarks_can_be_read() -> None:
    with (ROOT / "bench" / "results.csv").open(newline="") as file:
        results = list(csv.DictReader(file))
    assert list(results[0]) == [
        "date",
        "commit",
        "bench",
        "case",
        "contender",
        "unit",
        "value",
        "note",
    ]
    for row in results:
        date.fromisoformat(row["date"])
        float(row["value"])
        assert None not in row.values()


def test_every_option_of_source_and_sink_is_described() -> None:
    pages = {name: (DOCS / name).read_text() for name in ("spark.md", "from-kafka.md")}
    for option in (*source.KNOWN, *sink.KNOWN):
        if option != "path":  # what load() and save() are given
            assert [page for page in pages if f"`{option}`" not in pages[page]] == [], option


#: Failures whose tests take longer than a person waits.
TAKES_LONG = {
    "The leader of an ensemble is killed",
    "A load killed before it has told Hive",
    "A program outside of the folder of its installation",
    "A source tree with leftovers of an installation",
}


def names_of_tests_without(*marks: str) -> set[str]:
    """Returns the names of the tests of failures that have none of these marks."""
    return {name for name, marked in marks_of_tests().items() if not marked.intersection(marks)}


@cache
def marks_of_tests() -> dict[str, set[str]]:
    """Returns the marks of all tests in the files to which the page on failures leads."""
    page = (DOCS / "failures.md").read_text()
    return {
        name: marks
        for path in sorted(set(re.findall(r"\.\./(tests/[\w/]+\.py)", page)))
        for name, marks in marked_tests(ROOT / path).items()
    }


def test_failures_are_touched_by_tests_that_a_person_waits_for() -> None:
    waited_for = names_of_tests_without("long", "slow")
    untouched = {
        heading for heading, text in failures().items() if not waited_for & set(NAMED.findall(text))
    }
    assert untouched - TAKES_LONG == set()


def test_ci_runs_a_test_of_every_failure() -> None:
    run = names_of_tests_without("slow")
    assert [
        heading
        for heading, text in failures().items()
        if not run.intersection(re.findall(r"\[(test_\w+)\]", text))
    ] == []


def marked_tests(path: Path) -> dict[str, set[str]]:
    """Returns the marks of each test of a file, without those of single cases."""
    tree = ast.parse(path.read_text())
    whole = {
        mark
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for mark in re.findall(r"pytest\.mark\.(\w+)", ast.unparse(node.value))
    }
    return {
        node.name: whole.union(
            text.removeprefix("pytest.mark.") for text in map(ast.unparse, node.decorator_list)
        )
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_the_architecture_names_what_is_there() -> None:
    """Looks for modules by path, classes and their methods; every room is in the tree."""
    package = ROOT / "spark_logbus"
    page = (DOCS / "architecture.md").read_text()
    sources = {path: path.read_text() for path in package.rglob("*.py")}
    code = "\n".join(sources.values())
    classes = defaultdict(list)
    for text in sources.values():
        for name in re.findall(r"^class (\w+)", text, re.M):
            classes[name].append(text)
    spans = set(re.findall(r"`([\w./]+)`", re.sub(r"(?ms)^```.*?^```$", "", page)))
    paths = {span for span in spans if span.endswith(".py")}
    elsewhere = {path.name for room in ("avro_columns", "jobs") for path in ROOT.glob(f"{room}/*")}
    assert [path for path in paths - elsewhere if not (package / path).is_file()] == []
    named = {span for span in spans if re.fullmatch(r"_?[A-Z][a-z]\w*(\.\w+)?", span)}
    assert len(paths) > 15
    assert len(named) > 50
    for name in named:
        owner, _, member = name.partition(".")
        assert owner in classes, f"there is no class {owner}"
        defined = rf"(def {member}\b|self\.{member}\b|^    {member}:)"
        assert not member or any(re.search(defined, text, re.M) for text in classes[owner]), name
    calls = {span for span in spans if re.fullmatch(r"[a-z]+(_[a-z]+)+", span)}
    unknown = [name for name in calls if not re.search(rf"\b{name}\b", code)]
    assert unknown == []
    tree = page[page.index("```\n") : page.index("Beside the package")]
    rooms = {path.parent.relative_to(package) for path in sources if path.parent != package}
    assert [str(room) for room in rooms if f"{room.name}/" not in tree] == []


#: Errors of an earlier release, of Java and of Confluent's client.
NOT_OURS = {"IncompatibleClassChangeError", "KafkaError", "NoSuchMethodError", "StaleOwnerError"}


def test_errors_that_pages_name_are_there() -> None:
    known = NOT_OURS | set(dir(builtins))
    for path in (*ROOT.glob("spark_logbus/**/*.py"), *ROOT.glob("avro_columns/**/*.py")):
        known.update(re.findall(r"^class (\w+Error)\b", path.read_text(), re.M))
    for page in PAGES:
        named = set(re.findall(r"\b[A-Z][a-z]\w+Error\b", page.read_text()))
        assert named - known == set(), page


#: Names with an underscore that Python documents, or that only types name.
NOT_PRIVATE = {"_ArgumentGroup", "_exit", "_replace"}


def test_the_architecture_lists_the_modules_that_use_private_names_of_others() -> None:
    page = (DOCS / "architecture.md").read_text()
    listed = page[page.index("## Private names of others") : page.index("## Words")]
    package = ROOT / "spark_logbus"
    maybe = re.compile(r"(?<!self)(?<!cls)\._[a-zA-Z]|getattr\(|import_module\(")
    using = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if maybe.search(text := path.read_text()) and private_names_of_others(ast.parse(text))
    }
    assert len(using) >= 8
    assert {module for module in using if f"`{module}`" not in listed} == set()


def private_names_of_others(tree: ast.Module) -> set[str]:
    """Returns the private names that a module uses of modules and objects not its own."""
    used, own = set(), set(NOT_PRIVATE)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("self" | "cls"), attr=name):
                own.add(name)
            case ast.Attribute(attr=name):
                used.add(name)
            case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                own.add(name)
            case ast.Call(func=ast.Name("getattr"), args=[_, ast.Constant(str(name)), *_]):
                used.add(name)
            case ast.Call(func=ast.Name("import_module"), args=[ast.Constant(str(name))]):
                used.update(name.split("."))
    return {name for name in used - own if name.startswith("_") and not name.startswith("__")}


def test_the_program_that_starts_pythons_takes_all_of_sparks_zips_from_their_path(
    tmp_path: Path,
) -> None:
    """Spark puts them there twice for a source that it finds by itself."""
    [program] = re.findall(r"(?s)```sh\n(#!/bin/sh\n.*?)```", (DOCS / "spark.md").read_text())
    path = tmp_path / "python"
    path.write_text(program.replace("/opt/venv/bin/python", sys.executable))
    path.chmod(0o755)
    zips = "/spark/python/lib/pyspark.zip:/spark/python/lib/py4j-0.10.9.9-src.zip"
    done = subprocess.run(
        [path, "-c", "import os; print(os.environ['PYTHONPATH'])"],
        env={**os.environ, "PYTHONPATH": f"{zips}:/spark/core.jar:{zips}:/spark/core.jar:/own"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "/spark/core.jar:/own\n"


def test_the_architecture_names_every_thread() -> None:
    page = (DOCS / "architecture.md").read_text()
    sources = [path.read_text() for path in (ROOT / "spark_logbus").rglob("*.py")]
    named = {
        name
        for text in sources
        if re.search(r"\b(Periodic|Thread|ThreadPoolExecutor|HelperThreads)\(", text)
        for name in names_of_threads(ast.parse(text))
    }
    assert len(named) > 20
    assert [name for name in sorted(named) if f"`{name}" not in page] == []


def names_of_threads(tree: ast.Module) -> set[str]:
    """Returns the names, or their beginnings, that a module gives to threads and pools."""
    names = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        made = ast.unparse(node.func).removeprefix("threading.")
        if made not in ("Periodic", "Thread", "ThreadPoolExecutor", "HelperThreads"):
            continue
        given = [
            keyword.value
            for keyword in node.keywords
            if keyword.arg in ("name", "thread_name_prefix")
        ]
        for value in (*given, *node.args):
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                names.add(value.value)
    return names
