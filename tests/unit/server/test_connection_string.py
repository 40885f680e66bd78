"""Where a connection string is told: a public one everywhere, a new one to a terminal or in a file of its own."""

from __future__ import annotations

import io
import json
import stat
from pathlib import Path

import pytest

from duobus.errors import ConfigurationError
from duobus.server.access.connection_strings import FILE_NAME, Banner, tell

TEXT = "Endpoint=sb://localhost:5672;SharedAccessKeyName=root;SharedAccessKey=CANARY;"


class Stream(io.StringIO):
    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal


def told(
    data: Path | None, *, is_public: bool, log_format: str = "text", is_terminal: bool = False
) -> tuple[str, str, Path | None]:
    """(standard output, standard error, the file)."""
    output, errors = Stream(is_terminal=is_terminal), Stream(is_terminal=is_terminal)
    path = tell(TEXT, is_public=is_public, log_format=log_format, data=data, output=output, errors=errors)
    return output.getvalue(), errors.getvalue(), path


@pytest.mark.parametrize("is_terminal", [True, False])
def test_that_of_the_emulator_is_printed_and_in_the_form_of_the_logs(tmp_path: Path, is_terminal: bool) -> None:
    assert told(tmp_path, is_public=True, is_terminal=is_terminal) == (f"Connection string: {TEXT}\n", "", None)
    output, errors, _ = told(tmp_path, is_public=True, log_format="json", is_terminal=is_terminal)
    assert (output, json.loads(errors)["connection_string"]) == ("", TEXT)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_new_one_is_shown_at_a_terminal(tmp_path: Path, log_format: str) -> None:
    found = told(tmp_path, is_public=False, log_format=log_format, is_terminal=True)
    assert found == (f"Connection string (shown once): {TEXT}\n", "", None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_without_a_terminal_it_goes_into_a_file_that_only_its_owner_reads(tmp_path: Path, log_format: str) -> None:
    output, errors, path = told(tmp_path, is_public=False, log_format=log_format)
    assert path == tmp_path.resolve() / FILE_NAME
    assert path.read_text() == TEXT + "\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "CANARY" not in output + errors
    assert str(path) in (output if log_format == "text" else json.loads(errors)["file"])
    assert [found.name for found in tmp_path.iterdir()] == [FILE_NAME]


def test_a_link_in_its_place_is_replaced_and_not_written_through(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    data = tmp_path / "data"
    data.mkdir()
    (data / FILE_NAME).symlink_to(other)
    told(data, is_public=False)
    assert other.read_text() == "kept"
    assert not (data / FILE_NAME).is_symlink()
    assert (data / FILE_NAME).read_text() == TEXT + "\n"


def test_without_a_data_folder_it_goes_into_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, _, path = told(None, is_public=False)
    assert path is not None
    assert path.parent.parent == tmp_path.resolve()
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_a_folder_that_takes_no_file_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME / "inside").mkdir(parents=True)
    with pytest.raises(ConfigurationError, match="cannot be written into"):
        told(tmp_path, is_public=False)
    assert [found.name for found in tmp_path.iterdir()] == [FILE_NAME]


def members(text: str = TEXT, http_port: int | None = 5300, tls_port: int | None = None) -> dict[str, object]:
    url = None if http_port is None else f"http://localhost:{http_port}"
    return {
        "amqp_port": 5672,
        "tls_port": tls_port,
        "http_port": http_port,
        "admin_url": url,
        "connection_string": text,
    }


def test_a_banner_says_where_the_server_listens_and_what_comes_next(tmp_path: Path) -> None:
    output = Stream(is_terminal=True)
    banner = Banner(members(tls_port=5671), tmp_path, output)
    banner.open()
    banner.tell_of_earlier()
    banner.close()
    first, second, third = output.getvalue().splitlines()
    assert first == "Serving AMQP localhost:5672, TLS localhost:5671, HTTP http://localhost:5300; Ctrl-C stops"
    assert second == "Connection string: shown at an earlier start, with the key of the access rule root"
    assert third == "Next: DUOBUS_CONNECTION_STRING='that string' duobus queue create orders"
    assert "CANARY" not in output.getvalue()


def test_a_banner_names_the_file_of_an_earlier_start_while_its_key_is_good(tmp_path: Path) -> None:
    told(tmp_path, is_public=False)
    for text, expected in ((TEXT, str(tmp_path / FILE_NAME)), (TEXT.replace("CANARY", "OTHER"), "access rule root")):
        output = Stream(is_terminal=True)
        Banner(members(text), tmp_path, output).tell_of_earlier()
        assert expected in output.getvalue()


def test_a_banner_asks_for_no_variable_where_the_command_finds_the_server_by_itself(tmp_path: Path) -> None:
    public = TEXT.replace("CANARY", "SAS_KEY_VALUE")
    for http_port, is_found in ((5300, True), (5301, False), (None, False)):
        output = Stream(is_terminal=True)
        Banner(members(public, http_port), tmp_path, output).close()
        assert ("DUOBUS_CONNECTION_STRING" not in output.getvalue()) is is_found
