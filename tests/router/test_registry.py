"""Who reaches the registry of subscribers, and how."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import blindpost
from blindpost.crypto.authorizers import AuthenticatorKeys
from blindpost.engine.undo import Undo
from blindpost.router.model import Domain
from blindpost.router.state import Registry, RouterClient, RouterState
from blindpost.wire.keys import Algorithm
from blindpost.wire.smp.versions import connection_layout
from tests.support.router.routers import new_key

SOURCES = Path(blindpost.__file__).parent
RAW_MAPS = ("_holders", "_rows", "_by_service")
"""The map of a registry, the dict below it, and the registries of services."""
OWNERS = {"_holders": "router/state.py", "_rows": "engine/undo.py", "_by_service": "router/state.py"}


def a_client(undo: Undo, client_id: int = 1) -> RouterClient:
    secrets = AuthenticatorKeys(new_key(Algorithm.X25519))
    return RouterClient(client_id, 20, connection_layout(20, bytes(32)), secrets, undo)


def uses(name: str) -> set[str]:
    """Files that use this name: as an attribute, in a string, or by import.

    Not in the pipeline, which runs elsewhere, imports nothing of a server, and has words of its own.
    """
    found = set()
    for path in SOURCES.rglob("*.py"):
        if "pipeline" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            named = (
                (isinstance(node, ast.Attribute) and node.attr == name)
                or (isinstance(node, ast.Constant) and node.value == name)
                or (isinstance(node, ast.alias) and node.name == name)
            )
            if named:
                found.add(path.relative_to(SOURCES).as_posix())
    return found


@pytest.mark.claim("SUB-05")
@pytest.mark.parametrize("name", RAW_MAPS)
def test_the_raw_maps_are_used_only_where_they_are_made(name: str) -> None:
    assert uses(name) == {OWNERS[name]}


@pytest.mark.claim("SUB-05")
def test_a_registry_is_looked_up_and_changed_by_its_methods_only() -> None:
    """No method hands the map out; the names that other modules call are these."""
    methods = {name for name, value in vars(Registry).items() if callable(value)}
    assert methods == {"__init__", "__len__", "holder", "take_over", "leave", "remove"}
    registry = Registry(Undo())
    client = a_client(Undo())
    results = [registry.take_over(b"id", client), registry.holder(b"id"), registry.remove(b"id")]
    assert results == [None, client, client]
    reached = set()
    for path in (SOURCES / "router").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and _is_registry(node.value):
                reached.add(node.attr)
    assert {"holder", "take_over", "remove"} <= reached <= methods


def _is_registry(node: ast.expr) -> bool:
    """`state.queues`, `state.notifiers` and `state.services(...)`, however the state is reached."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Attribute) and node.func.attr == "services" and _is_state(node.func)
    return isinstance(node, ast.Attribute) and node.attr in ("queues", "notifiers") and _is_state(node)


def _is_state(node: ast.Attribute) -> bool:
    owner = node.value
    if isinstance(owner, ast.Attribute):
        return owner.attr == "state"
    return isinstance(owner, ast.Name) and owner.id == "state"


@pytest.mark.claim("SUB-06")
def test_an_id_of_one_registry_is_not_found_in_another() -> None:
    undo = Undo()
    state = RouterState(undo)
    registries = [state.queues, state.notifiers, *(state.services(domain) for domain in Domain)]
    clients = [a_client(undo, number) for number in range(len(registries))]
    for registry, client in zip(registries, clients, strict=True):
        assert registry.take_over(b"the same id", client) is None
    for registry, client in zip(registries, clients, strict=True):
        assert registry.holder(b"the same id") is client
        assert registry.holder(b"another id") is None
    for place, registry in enumerate(registries):
        registry.remove(b"the same id")
        left = [other.holder(b"the same id") is not None for other in registries]
        assert left == [number > place for number in range(len(registries))]


def test_a_takeover_names_the_previous_holder_once() -> None:
    undo = Undo()
    registry, one, two = Registry(undo), a_client(undo, 1), a_client(undo, 2)
    assert registry.take_over(b"id", one) is None
    assert registry.take_over(b"id", one) is None
    assert registry.take_over(b"id", two) is one
    registry.leave(b"id", one)
    assert (registry.holder(b"id"), len(registry)) == (two, 1)
    registry.leave(b"id", two)
    assert (registry.holder(b"id"), len(registry)) == (None, 0)
