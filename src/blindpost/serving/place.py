"""Where a server lives: its configuration file, the folder around it, and what every server has there."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast

from blindpost.serving import locking
from blindpost.serving.control import NotRunningError, ask
from blindpost.serving.failures import OperatorError, quoted
from blindpost.serving.files import read_file
from blindpost.serving.journal import JournalSection
from blindpost.serving.sections import ControlSection, LogSection, MetricsSection
from blindpost.serving.settings import Section, parse
from blindpost.serving.toml_text import read_toml
from blindpost.store.file_locks import is_held

if TYPE_CHECKING:
    from blindpost.store.ownership import Shared


WAITING = "standby"
"""What `status` calls the state of a server that waits for its database."""
WAITING_HELP = "It waits for its database, which another server owns"


class ServerSettings(Section):
    """The tables that every server's configuration has."""

    log: LogSection = LogSection()
    metrics: MetricsSection
    control: ControlSection = ControlSection()
    journal: JournalSection = JournalSection()


S = TypeVar("S", bound=ServerSettings)


class Place(Generic[S]):
    """A configuration file and the folder that its relative paths start from."""

    word: ClassVar[str]
    """The word after `blindpost`; it names the configuration file and the lock too."""
    title: ClassVar[str]
    """What people call such a server, after "the"."""
    model: ClassVar[type[ServerSettings]]
    """What the file may contain."""
    init_options: ClassVar[str] = ""
    """What `init` needs besides the folder."""

    def __init__(self, file: Path, settings: S) -> None:
        self.file = file
        self.folder = file.parent
        self.settings = settings
        self.control = self.folder / settings.control.socket
        self.lock = self.folder / f"{self.word}.lock"

    @classmethod
    def config_name(cls) -> str:
        return f"{cls.word}.toml"

    @classmethod
    def parse(cls, content: bytes, file: Path) -> S:
        """The settings in a file, complete and checked."""
        return cast(S, parse(content, file, cls.model))

    @classmethod
    def read(cls, given: Path) -> Self:
        """The configuration that a person names by its file or its folder."""
        file = given / cls.config_name() if given.is_dir() else given
        if not file.exists():
            folder = given.parent if given.suffix == ".toml" else given
            raise OperatorError(
                f"{file}: no {cls.title} is set up here. Create one with `blindpost {cls.word} init "
                f"{quoted(folder)}{cls.init_options}`, or name another place with --config."
            )
        file = file.absolute()
        return cls(file, cls.parse(read_file(file), file))

    @property
    def store_folder(self) -> Path | None:
        """Where its store is, in this folder or elsewhere; None for a database."""
        return None

    def require_store(self, data: Path) -> None:
        """Refuse to go on without the file of the store: an empty one would look like lost messages."""
        if not data.exists() or not data.stat().st_size:
            raise OperatorError(
                f"{data}: the {self.title}'s store is missing. Mount the disk that has it, restore a backup "
                f"with `blindpost {self.word} restore`, or set up a new {self.title} in another folder."
            )

    @property
    def schema(self) -> int:
        """The version of its store's schema as this program writes it; 0 without such a store."""
        return 0

    @property
    def known_as(self) -> str:
        """The fingerprint that its address names; empty where clients keep to none."""
        return ""

    @property
    def shared(self) -> Shared | None:
        """The database that it waits for while another server owns it; None if it does not wait."""
        return None

    @property
    def written_folders(self) -> list[Path]:
        """Folders the server writes to; each may be on a different disk."""
        journal = self.settings.journal
        written = [self.folder, self.store_folder, self.folder / journal.folder if journal.enabled else None]
        return [folder for folder in dict.fromkeys(written) if folder is not None and folder.is_dir()]

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """Lock the folder: one server, or one command that needs it stopped, at a time."""
        return locking.locked(
            self.lock,
            f"a {self.title} is running in this folder. Look at it with `blindpost {self.word} status`, "
            "or stop it first.",
        )


def ask_running(place: Place[Any], command: str, **arguments: Any) -> dict[str, Any]:
    """The answer of the server that runs in this place."""
    try:
        return ask(place.control, command, **arguments)
    except NotRunningError as error:
        named = place.folder if place.file.name == place.config_name() else place.file
        start = f"blindpost {place.word} start -c {quoted(named)}"
        at_work = place.title if is_held(place.lock) else ""
        raise NotRunningError(place.control, start, at_work) from error


def control_of(file: Path) -> Path:
    """The control socket that a server's configuration names, for those who need nothing else of it."""
    try:
        named = read_toml(file.read_text(encoding="utf-8")).get("control", {}).get("socket")
    except (OSError, ValueError, AttributeError):
        named = None  # the server itself says what is wrong with its file
    return file.parent / (named if isinstance(named, str) else ControlSection().socket)
