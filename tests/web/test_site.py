"""What the site answers, as a function of the request alone."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from blindpost.web import site as site_module
from blindpost.web.information import Facts, Information
from blindpost.web.pages import LINK_KINDS
from blindpost.web.site import Reply, Site
from tests.support.web.sites import FACTS


def shown(folder: Path | None = None) -> Site:
    return Site(lambda: FACTS, folder)


def test_the_page_shows_what_the_server_is_and_who_runs_it() -> None:
    page = shown().answer("GET", "/").body.decode()
    for text in ("smp://AAAA@localhost", "<svg", "kept for 21 days", "jane@example.org", "1.2.3"):
        assert text in page
    assert "Jane &lt;Doe&gt;" in page
    assert '<a href="https://example.org"' in page


def test_missing_operator_details_are_not_shown() -> None:
    bare = Site(lambda: Facts("host", "smp://A@host", "1", ()))
    page = bare.answer("GET", "/").body.decode()
    assert "Who runs it" not in page
    assert "Rules" not in page


@pytest.mark.parametrize("value", ["javascript:alert(1)", "data:text/html,x", '"><script>x</script>'])
def test_operator_details_are_escaped(value: str) -> None:
    page = Site(lambda: Facts("h", "smp://A@h", "1", (), Information(website=value))).answer("GET", "/").body
    assert b"<script>x" not in page
    assert b'href="javascript' not in page
    assert b'href="data:text' not in page


@pytest.mark.parametrize("letter", sorted(LINK_KINDS))
@pytest.mark.parametrize("below", ["", "/", "/anything/below", "?query=1"])
def test_every_kind_of_link_has_a_page(letter: str, below: str) -> None:
    reply = shown().answer("GET", f"/{letter}{below}")
    assert reply.status == 200
    assert f'data-link="{letter}"'.encode() in reply.body


@pytest.mark.parametrize(
    "path", ["/b", "/aa", "//", "/assets", "/assets/", "/assets/../pages.py", "/%2e%2e/x", "/a\\b", "x", ""]
)
def test_anything_else_is_not_found(path: str) -> None:
    assert shown().answer("GET", path).status == 404


def test_nothing_can_be_changed() -> None:
    reply = shown().answer("POST", "/")
    assert reply.status == 405
    assert ("allow", "GET, HEAD") in reply.headers


def test_every_answer_has_security_headers() -> None:
    for path in ("/", "/a", "/assets/site.css", "/nothing"):
        headers = dict(shown().answer("GET", path).headers)
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-content-type-options"] == "nosniff"


def test_the_source_of_the_running_program_is_offered() -> None:
    archive = shown().answer("GET", "/source.tar.gz").body
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as source:
        names = source.getnames()
        member = source.extractfile("blindpost/web/site.py")
        assert member is not None
        assert member.read() == Path(site_module.__file__).read_bytes()
    assert not [name for name in names if "__pycache__" in name]


class TestFolder:
    """The operator's own files take precedence over ours; nothing outside their folder is ever shown."""

    def folder(self, tmp_path: Path) -> Path:
        folder = tmp_path / "site"
        (folder / ".well-known").mkdir(parents=True)
        (folder / "media").mkdir()
        (folder / ".well-known" / "apple-app-site-association").write_text("{}")
        (folder / ".well-known" / "assetlinks.json").write_text("[]")
        (folder / "media" / "logo.svg").write_text("<svg/>")
        (folder / ".secret").write_text("secret")
        (tmp_path / "outside.txt").write_text("secret")
        (folder / "way-out.txt").symlink_to(tmp_path / "outside.txt")
        return folder

    def ask(self, tmp_path: Path, path: str) -> Reply:
        return shown(self.folder(tmp_path)).answer("GET", path)

    @pytest.mark.parametrize(
        ("path", "kind"),
        [
            ("/.well-known/apple-app-site-association", "application/json"),
            ("/.well-known/assetlinks.json", "application/json"),
            ("/media/logo.svg", "image/svg+xml"),
        ],
    )
    def test_files_are_served_with_their_type(self, tmp_path: Path, path: str, kind: str) -> None:
        reply = self.ask(tmp_path, path)
        assert (reply.status, reply.content_type) == (200, kind)

    @pytest.mark.parametrize(
        "path",
        [
            "/.secret",
            "/way-out.txt",
            "/../outside.txt",
            "/media/../../outside.txt",
            "/media",
            "/.well-known/.x",
        ],
    )
    def test_nothing_hidden_or_outside_is_shown(self, tmp_path: Path, path: str) -> None:
        reply = self.ask(tmp_path, path)
        assert reply.status == 404
        assert b"secret" not in reply.body

    def test_own_pages_replace_ours(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path)
        assert b"smp://AAAA" in shown(folder).answer("GET", "/").body
        (folder / "index.html").write_text("mine")
        (folder / "link.html").write_text("my link page")
        assert shown(folder).answer("GET", "/").body == b"mine"
        assert shown(folder).answer("GET", "/g").body == b"my link page"

    def test_a_file_too_large_to_hold_is_not_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(site_module, "FILE_MAX", 3)
        site = shown(self.folder(tmp_path))
        assert site.answer("GET", "/media/logo.svg").status == 404
        assert site.answer("GET", "/.well-known/assetlinks.json").status == 200

    def test_without_its_folder_the_site_shows_our_pages(self, tmp_path: Path) -> None:
        assert shown(tmp_path / "nowhere").answer("GET", "/").status == 200

    def test_a_visit_reads_no_file_and_computes_no_hash(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """`refresh` picks up changes in the folder and reads only what changed."""
        folder = self.folder(tmp_path)
        site = shown(folder)
        site.answer("GET", "/source.tar.gz")
        logo = folder / "media" / "logo.svg"
        read: list[Path] = []

        def reading(file: Path) -> bytes:
            read.append(file)
            with file.open("rb") as opened:
                return opened.read()

        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", reading)
            patched.setattr("hashlib.sha256", lambda _body: pytest.fail("a hash was computed"))
            logo.write_text("<svg></svg>")
            paths = ("/", "/a", "/a/b", "/media/logo.svg", "/assets/link.mjs", "/source.tar.gz", "/nothing")
            replies = [site.answer("GET", path) for path in paths]
            assert [reply.status for reply in replies] == [200] * 6 + [404]
            assert replies[3].body == b"<svg/>"
            assert read == []
        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_bytes", reading)
            site.refresh()
        assert read == [logo]
        assert site.answer("GET", "/media/logo.svg").body == b"<svg></svg>"
        logo.unlink()
        site.refresh()
        assert site.answer("GET", "/media/logo.svg").status == 404

    def test_a_large_folder_is_held_only_up_to_a_bound(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(site_module, "FILES_BYTES_MAX", 250)
        folder = tmp_path / "site"
        folder.mkdir()
        for number in range(5):
            (folder / f"{number}.txt").write_bytes(b"x" * 100)
        site = shown(folder)
        site.refresh()
        assert [site.answer("GET", f"/{number}.txt").status for number in range(5)] == [
            200,
            200,
            404,
            404,
            404,
        ]
        assert caplog.text.count("3 files are too large to be served") == 1
