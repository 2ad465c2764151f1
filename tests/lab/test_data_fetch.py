"""Fetching, from a server in this process: the right bytes or nothing at all. No test leaves this machine."""

import errno
import gzip
import hashlib
import io
import random
import socket
import threading
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ctld_lab import data
from ctld_lab.data import DATASETS, DataError, Download, locate, uci

TEXT = random.Random(1).randbytes(200_000)


class Server(ThreadingHTTPServer):
    """Sends `content[path]`; a path that ends in `cut` breaks off half-way, one in `endless` never ends by itself."""

    daemon_threads = False  # closing the server waits for whoever is still sending

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.content: dict[str, bytes] = {}
        self.asked: list[str] = []

    def url(self, path):
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked.append(self.path)
        content = self.server.content.get(self.path)
        if content is None:
            self.send_error(404)
            return
        self.send_response(200)
        if not self.path.endswith("endless"):
            self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        try:
            if self.path.endswith("endless"):
                while True:
                    self.wfile.write(content)
            self.wfile.write(content[: len(content) // 2] if self.path.endswith("cut") else content)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def refusing_url():
    """A port that is bound and not listened on: connections are refused, and nobody else gets it meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/text"


@pytest.fixture(autouse=True)
def _isolated(monkeypatch, tmp_path):
    monkeypatch.delenv("CTLD_DATA", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(locate, "cache_folder", lambda: tmp_path / "cache")


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def zipped(member, content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
    return buffer.getvalue()


def serve_text(monkeypatch, urls, *, name="war-and-peace", sent=TEXT, content=TEXT):
    """The row of that name, with these bytes at these addresses."""
    (file,) = DATASETS[name].files
    row = Download(file.download.name, len(sent), sha256(sent), tuple(urls))
    file = replace(file, size=len(content), sha256=sha256(content), download=row)
    monkeypatch.setitem(DATASETS, name, replace(DATASETS[name], files=(file,)))


def everything_below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_fetch_then_load(monkeypatch, server, tmp_path):
    server.content["/text"] = TEXT
    serve_text(monkeypatch, [server.url("/text")])
    reports = []
    paths = data.fetch("war-and-peace", progress=lambda *report: reports.append(report))
    assert paths == [tmp_path / "cache" / "war-and-peace" / "warpeace_input.txt"]
    assert everything_below(tmp_path / "cache") == ["war-and-peace", "war-and-peace/warpeace_input.txt"]
    assert data.load_text("war-and-peace").sha256 == sha256(TEXT)
    assert reports[-1] == ("warpeace_input.txt", len(TEXT), len(TEXT))
    assert [done for _, done, _ in reports] == sorted(done for _, done, _ in reports)


def test_destination(monkeypatch, server, tmp_path):
    server.content["/text"] = TEXT
    serve_text(monkeypatch, [server.url("/text")])
    monkeypatch.setenv("CTLD_DATA", str(tmp_path / "variable"))
    for folder, given in ((tmp_path / "given" / "deep", tmp_path / "given" / "deep"), (tmp_path / "variable", None)):
        assert data.fetch("war-and-peace", given) == [folder / "war-and-peace" / "warpeace_input.txt"]


def test_zip_is_extracted(monkeypatch, server, tmp_path):
    server.content["/text"] = zipped("enwik8", TEXT)
    serve_text(monkeypatch, [server.url("/text")], name="enwik8", sent=server.content["/text"])
    data.fetch("enwik8", tmp_path / "data")
    assert everything_below(tmp_path / "data") == ["enwik8", "enwik8/enwik8"]
    assert data.load_text("enwik8", tmp_path / "data").sha256 == sha256(TEXT)


@pytest.mark.parametrize(
    "archive", [zipped("../enwik8", TEXT), zipped("enwik8", TEXT[::-1]), zipped("enwik8", b""), b"x"]
)
def test_zip_with_something_else_leaves_nothing(monkeypatch, server, tmp_path, archive):
    server.content["/text"] = archive
    serve_text(monkeypatch, [server.url("/text")], name="enwik8", sent=archive)
    with pytest.raises(DataError, match=r"enwik8\.zip"):
        data.fetch("enwik8", tmp_path / "data")
    assert not (tmp_path / "data").exists()


def test_several_files(monkeypatch, server, tmp_path):
    files = []
    for file in DATASETS["mnist"].files:
        sent = gzip.compress(file.name.encode())
        server.content[f"/{file.name}"] = sent
        row = Download(file.download.name, len(sent), sha256(sent), (server.url(f"/{file.name}"),))
        files.append(replace(file, size=len(file.name), sha256=sha256(file.name.encode()), download=row))
    monkeypatch.setitem(DATASETS, "mnist", replace(DATASETS["mnist"], files=tuple(files)))
    last = server.content.pop("/t10k-labels-idx1-ubyte")
    with pytest.raises(DataError, match="404"):
        data.fetch("mnist", tmp_path)
    assert len(list((tmp_path / "mnist").iterdir())) == 3  # whole files stay
    server.content["/t10k-labels-idx1-ubyte"] = last
    server.asked.clear()
    assert len(data.fetch("mnist", tmp_path)) == 4
    assert server.asked == ["/t10k-labels-idx1-ubyte"]
    assert all(check.ok for check in data.verify("mnist", tmp_path))


def test_next_mirror(monkeypatch, server, tmp_path, refusing_url):
    server.content |= {"/wrong": TEXT[::-1], "/short": TEXT[:-1], "/cut": TEXT, "/endless": TEXT, "/good": TEXT}
    bad = [server.url(path) for path in ("/missing", "/wrong", "/short", "/cut", "/endless")]
    serve_text(monkeypatch, [refusing_url, *bad, server.url("/good"), server.url("/unasked")])
    (path,) = data.fetch("war-and-peace", tmp_path)
    assert path.read_bytes() == TEXT
    assert server.asked == ["/missing", "/wrong", "/short", "/cut", "/endless", "/good"]


def test_all_mirrors_fail(monkeypatch, server, tmp_path, refusing_url):
    server.content |= {"/wrong": TEXT[::-1], "/endless": TEXT, "/cut": TEXT}
    urls = [refusing_url, *(server.url(path) for path in ("/missing", "/wrong", "/endless", "/cut"))]
    serve_text(monkeypatch, urls)
    with pytest.raises(DataError) as caught:
        data.fetch("war-and-peace", tmp_path / "data")
    message = str(caught.value)
    for url in urls:
        assert url in message
    assert f"sent SHA-256 {sha256(TEXT[::-1])}, expected {sha256(TEXT)}" in message
    assert "more than the 200,000 bytes" in message
    assert str(tmp_path / "data" / "war-and-peace") in message
    assert "Check the network" in message
    assert not (tmp_path / "data").exists()


def test_present_is_kept_and_force_replaces(monkeypatch, server, tmp_path):
    server.content["/text"] = TEXT
    serve_text(monkeypatch, [server.url("/text")])
    path = tmp_path / "warpeace_input.txt"
    path.write_bytes(TEXT)
    assert data.fetch("war-and-peace", tmp_path) == [path]
    assert server.asked == []
    for damaged, reason in ((TEXT[::-1], "SHA-256"), (TEXT[:-1], "199,999 bytes")):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=f"{reason}.*\n.*ctld data fetch war-and-peace --force --data-dir"):
            data.fetch("war-and-peace", tmp_path)
        assert path.read_bytes() == damaged
    assert server.asked == []
    # The damaged file of the user's stays; the good one is found before it.
    data.fetch("war-and-peace", tmp_path, force=True)
    assert data.load_text("war-and-peace", tmp_path).sha256 == sha256(TEXT)
    (tmp_path / "war-and-peace" / "warpeace_input.txt").write_bytes(b"damaged")
    data.fetch("war-and-peace", tmp_path, force=True)
    assert data.load_text("war-and-peace", tmp_path).sha256 == sha256(TEXT)


def test_failed_force_keeps_what_was_there(monkeypatch, refusing_url, tmp_path):
    serve_text(monkeypatch, [refusing_url])
    (tmp_path / "war-and-peace").mkdir()
    (tmp_path / "war-and-peace" / "warpeace_input.txt").write_bytes(TEXT)
    with pytest.raises(DataError, match="could not be downloaded"):
        data.fetch("war-and-peace", tmp_path, force=True)
    assert everything_below(tmp_path) == ["war-and-peace", "war-and-peace/warpeace_input.txt"]
    assert data.load_text("war-and-peace", tmp_path).sha256 == sha256(TEXT)


def test_interrupted_leaves_nothing(monkeypatch, server, tmp_path):
    def interrupt(*report):
        raise KeyboardInterrupt

    server.content["/text"] = TEXT
    serve_text(monkeypatch, [server.url("/text")])
    with pytest.raises(KeyboardInterrupt):
        data.fetch("war-and-peace", tmp_path / "data", progress=interrupt)
    assert not (tmp_path / "data").exists()


def test_place_that_cannot_be_written(monkeypatch, server, tmp_path):
    server.content["/text"] = TEXT
    serve_text(monkeypatch, [server.url("/text"), server.url("/text")])
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        data.fetch("war-and-peace", tmp_path / "file")
    (tmp_path / "war-and-peace" / "warpeace_input.txt").mkdir(parents=True)
    with pytest.raises(DataError, match="cannot be written"):
        data.fetch("war-and-peace", tmp_path)
    assert everything_below(tmp_path / "war-and-peace") == ["warpeace_input.txt"]


def test_full_disk_is_not_the_fault_of_a_mirror(monkeypatch, server, tmp_path):
    class FullDisk(io.BytesIO):
        def write(self, chunk):
            raise OSError(errno.ENOSPC, "No space left on device")

    server.content["/text"] = TEXT
    serve_text(monkeypatch, [server.url("/text"), server.url("/text")])
    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode="r": FullDisk() if mode == "wb" else opened(path, mode))
    with pytest.raises(DataError, match="No space left on device"):
        data.fetch("war-and-peace", tmp_path / "data")
    assert server.asked == ["/text"]
    assert not (tmp_path / "data").exists()


def test_embedded_data_need_no_fetching(tmp_path):
    assert data.fetch("digits", tmp_path / "data") == []
    assert not (tmp_path / "data").exists()


class TestUCI:
    """A data set of UCI's is 43 files, which appear together or not at all."""

    @pytest.fixture
    def served(self, monkeypatch, server):
        content = {name: f"{number} 1\n{number} 2\n".encode() for number, name in enumerate(uci.FILES)}
        content |= {"data.txt": b"1 2 3\n4 5 6\n7 8 9\n", "index_features.txt": b"0\n1\n", "index_target.txt": b"2\n"}
        content |= {
            name: b"0\n2\n" if "train" in name else b"1\n1\n"
            for name in uci.FILES
            if "_t" in name and "target" not in name
        }
        server.content = {f"/energy/data/{name}": sent for name, sent in content.items()}
        digest = sha256("".join(sha256(content[name]) for name in uci.FILES).encode())
        monkeypatch.setattr(uci, "HOME", server.url(""))
        monkeypatch.setattr(uci, "DATA", {"energy": digest})
        return server

    def test_fetch_then_load(self, served, tmp_path):
        seen = []
        folder = uci.fetch("energy", tmp_path, lambda *row: seen.append(row))
        assert folder == tmp_path / "uci" / "energy"
        assert len(served.asked) == len(uci.FILES) == 43
        assert seen[-1] == ("energy", 43, 43)
        inputs, targets, rows = uci.load("energy", tmp_path)
        assert inputs.tolist() == [[1, 2], [4, 5], [7, 8]]
        assert targets.tolist() == [[3], [6], [9]]
        assert len(rows) == 20
        uci.fetch("energy", tmp_path)  # what is there and right stays
        assert len(served.asked) == 43
        uci.fetch("energy", tmp_path, force=True)
        assert len(served.asked) == 86

    def test_a_place_that_cannot_be_written_is_named(self, served, tmp_path):
        (tmp_path / "uci").write_text("in the way")
        with pytest.raises(DataError, match=r"uci/energy: cannot be written .* --data-dir"):
            uci.fetch("energy", tmp_path)

    def test_a_damaged_one_is_replaced(self, served, tmp_path):
        (uci.fetch("energy", tmp_path) / "data.txt").write_text("1 2 3\n")
        with pytest.raises(DataError, match="to replace it: ctld data fetch uci/energy"):
            uci.load("energy", tmp_path)
        uci.fetch("energy", tmp_path)
        assert len(uci.load("energy", tmp_path)[0]) == 3
        assert [path.name for path in (tmp_path / "uci").iterdir()] == ["energy"]

    @pytest.mark.parametrize("harm", ["other bytes", "missing", "endless"])
    def test_nothing_is_left_of_one_that_is_not_right(self, monkeypatch, served, tmp_path, harm):
        path = "/energy/data/index_test_7.txt"
        if harm == "endless":
            monkeypatch.setattr(uci, "_MOST", 1000)
        content = {"other bytes": b"2\n", "missing": None, "endless": b"0\n" * 1000}[harm]
        served.content[path] = content
        with pytest.raises(DataError, match="SHA-256" if harm == "other bytes" else "index_test_7.txt could not be"):
            uci.fetch("energy", tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_an_unknown_one_is_refused(self):
        with pytest.raises(DataError, match="'yacht' is no data set of UCI's; give one of bostonHousing, energy"):
            uci.fetch("yacht")
