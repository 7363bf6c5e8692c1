"""Passwords that are sent as they are."""

from __future__ import annotations

import pytest

from spark_logbus.errors import AuthenticationError
from spark_logbus.security import passwords
from spark_logbus.security.attempts import LoginLimits, TooManyFailuresError
from spark_logbus.security.passwords import PasswordCheck
from spark_logbus.security.scram import Credential, fits, new_credentials
from tests.fakes.clock import ManualClock

PASSWORD = "correct horse ø"


class Users:
    """Users by name; counts who is looked for, and which passwords are tried."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.credentials = {"anna": new_credentials(PASSWORD)}
        self.tried: list[str] = []
        monkeypatch.setattr(passwords, "fits", self._fits)

    def find(self, user: str, mechanism: str) -> Credential | None:
        return self.credentials.get(user, {}).get(mechanism)

    def _fits(self, password: str, credential: Credential, mechanism: str) -> bool:
        self.tried.append(password)
        return fits(password, credential, mechanism)


@pytest.fixture
def users(monkeypatch: pytest.MonkeyPatch) -> Users:
    return Users(monkeypatch)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def check(users: Users, clock: ManualClock) -> PasswordCheck:
    return PasswordCheck(users.find, limits=LoginLimits(clock), clock=clock)


def refused(check: PasswordCheck, user: str, password: str, address: str = "10.0.0.1") -> None:
    with pytest.raises(AuthenticationError, match=r"^The user or the password is wrong\.$"):
        check.require(user, password, address=address)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_fits_the_credential_that_was_made_of_it(mechanism: str) -> None:
    credential = new_credentials(PASSWORD)[mechanism]
    assert fits(PASSWORD, credential, mechanism)
    for other in ("", PASSWORD.upper(), PASSWORD + "\x00", "\ud800", "a\u0627"):
        assert not fits(other, credential, mechanism)


def test_a_password_that_was_right_is_not_tried_again_for_a_minute(
    check: PasswordCheck, users: Users, clock: ManualClock
) -> None:
    for _ in range(3):
        check.require("anna", PASSWORD, address="10.0.0.1")
    assert len(users.tried) == 1
    clock.advance(61)
    check.require("anna", PASSWORD, address="10.0.0.1")
    assert len(users.tried) == 2


def test_a_remembered_password_ends_with_its_user_and_with_a_new_password(
    check: PasswordCheck, users: Users
) -> None:
    check.require("anna", PASSWORD, address="10.0.0.1")
    users.credentials["anna"] = new_credentials("another one")
    refused(check, "anna", PASSWORD)
    check.require("anna", "another one", address="10.0.0.1")
    del users.credentials["anna"]
    refused(check, "anna", "another one")


def test_a_wrong_password_is_tried_each_time_and_an_unknown_user_costs_the_same(
    check: PasswordCheck, users: Users
) -> None:
    check.require("anna", PASSWORD, address="10.0.0.1")
    refused(check, "anna", "wrong")
    refused(check, "anna", "wrong")
    refused(check, "nobody", PASSWORD)
    refused(check, "anna\x00", PASSWORD)
    assert users.tried == [PASSWORD, "wrong", "wrong", PASSWORD, PASSWORD]


def test_guesses_are_limited_and_a_right_one_among_them_is_not_told(
    check: PasswordCheck, users: Users, clock: ManualClock
) -> None:
    check.require("anna", PASSWORD, address="10.0.0.9")
    for number in range(5):
        refused(check, "anna", f"guess {number}")
    tried = len(users.tried)
    for number in range(1_000):
        password = PASSWORD if number == 500 else f"guess {number}"
        with pytest.raises(TooManyFailuresError):
            check.require("anna", password, address="10.0.0.1")
    assert len(users.tried) == tried
    check.require("anna", PASSWORD, address="10.0.0.9")
    clock.advance(10)
    check.require("anna", PASSWORD, address="10.0.0.1")


def test_guesses_at_many_users_are_limited_by_their_address(
    check: PasswordCheck, users: Users
) -> None:
    for number in range(50):
        refused(check, f"user {number}", "guess")
    with pytest.raises(TooManyFailuresError):
        check.require("anna", PASSWORD, address="10.0.0.1")
    check.require("anna", PASSWORD, address="10.0.0.2")


def test_no_more_than_a_thousand_are_remembered(
    check: PasswordCheck, users: Users, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passwords, "_MAX_REMEMBERED", 2)
    for name in ("bert", "cora"):
        users.credentials[name] = users.credentials["anna"]
    for name in ("anna", "bert", "cora", "cora", "bert", "anna"):
        check.require(name, PASSWORD, address="10.0.0.1")
    assert len(users.tried) == 4
