"""A room uses only the rooms below it, except along the arrows that the architecture names."""

from __future__ import annotations

import ast
from pathlib import Path

import blindpost

SOURCE = Path(blindpost.__file__).parent

FLOORS = {
    "wire": 0,
    "crypto": 0,
    "transport": 1,
    "engine": 2,
    "store": 2,
    "journal": 2,
    "client": 3,
    "serving": 3,
    "web": 3,
    "router": 4,
    "ds": 4,
    "agent": 4,
    "ntf": 4,
    "pipeline": 4,
    "chat": 5,
    "canary": 5,
    "ops": 5,
    "bot": 6,
    "testing": 7,
    "demo": 8,
    "cli": 9,
}
FORBIDDEN = ("socket", "ssl", "sqlite3", "asyncio", "subprocess", "multiprocessing")
"""What the ground floor does without."""
ARROWS = {("crypto", "wire"), ("store", "engine")}


def imports(path: Path) -> set[str]:
    """The rooms that a module imports from."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        found.update(name.split(".")[1] for name in names if name.startswith("blindpost."))
    return found & FLOORS.keys()


def test_every_room_has_a_floor() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms == FLOORS.keys()


def test_rooms_import_only_from_below() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} uses {other}"
        for room, floor in FLOORS.items()
        for path in (SOURCE / room).rglob("*.py")
        for other in imports(path) - {room}
        if FLOORS[other] >= floor and (room, other) not in ARROWS
    ]
    assert wrong == []


def test_the_ground_floor_does_no_io() -> None:
    for room in ("wire", "crypto", "chat/codec"):
        for path in (SOURCE / room).rglob("*.py"):
            tree = ast.parse(path.read_text())
            used = {
                alias.name.split(".")[0]
                for node in ast.walk(tree)
                if isinstance(node, ast.Import)
                for alias in node.names
            } | {
                node.module.split(".")[0]
                for node in ast.walk(tree)
                if isinstance(node, ast.ImportFrom) and node.module is not None
            }
            forbidden = set(FORBIDDEN) | ({"time", "os", "secrets"} if room != "crypto" else set())
            assert not used & forbidden, f"{path.relative_to(SOURCE)} uses {used & forbidden}"
