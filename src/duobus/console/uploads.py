"""Forms that browsers send: fields, which are held in memory and bounded, and files, which go to disk part by part."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import IO, Final, NamedTuple

from aiohttp import BodyPartReader, MultipartReader, web
from multidict import MultiDict

from duobus.console.visits import Refusal

#: Largest file that is to be one message, in bytes: the largest message of Service Bus, and room for its headers.
MESSAGE_BYTES_MAX: Final = 101 << 20
#: Parts of a form, which are fields or files.
PARTS_MAX: Final = 2_000
#: Room on the disk that an upload leaves to others, in bytes.
SPARED_BYTES: Final = 256 << 20
_CHUNK: Final = 1 << 18
#: The room on the disk is looked at after so many bytes.
_LOOK_BYTES: Final = 16 << 20
#: Files up to this size stay in memory.
_SPOOLED_BYTES: Final = 1 << 20


class Upload:
    """A file that a browser has sent.

    Whoever goes on with the file after the answer keeps it, and closes it; otherwise it is gone with the request.

    Args:
        file: Where the console has written it.

    Attributes:
        file: The same, at its beginning.
        size: Bytes.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.size = file.seek(0, 2)
        self._is_kept = False
        file.seek(0)

    def read(self) -> bytes:
        """The whole file."""
        self.file.seek(0)
        return self.file.read()

    def lines(self, bytes_max: int) -> Iterator[bytes]:
        """The lines of the file from its beginning on; longer ones come in pieces of ``bytes_max`` and one byte."""
        self.file.seek(0)
        while line := self.file.readline(bytes_max + 1):
            yield line

    def keep(self) -> Upload:
        """Go on with the file after the answer; ``close`` ends that."""
        self._is_kept = True
        return self

    def close(self) -> None:
        """Forget the file, whose bytes are deleted by that."""
        self.file.close()

    def end_of_request(self) -> None:
        """Forget the file unless somebody has kept it."""
        if not self._is_kept:
            self.close()


class Form(NamedTuple):
    """What a form has brought.

    Attributes:
        fields: Texts by the names of their fields.
        files: Uploaded files likewise.
    """

    fields: MultiDict[str]
    files: dict[str, Upload]

    def end_of_request(self) -> None:
        """Forget the files that nobody has kept."""
        for file in self.files.values():
            file.end_of_request()


#: For a request without a form.
NO_FORM: Final = Form(MultiDict(), {})


async def read_form(
    request: web.Request, *, fields_max: int, file_max: int | None, admit: Callable[[Mapping[str, str]], None]
) -> Form:
    """Read the form of a POST.

    Args:
        request: The request.
        fields_max: Bytes of all fields together.
        file_max: Bytes of each file; 0 for a form without files, None for files that only the disk bounds.
        admit: Raises a ``Refusal`` when the fields that came before do not allow to send this form. Called before the
            first byte of a file is read, and at the end.

    Raises:
        Refusal: The form is none, too large, or not admitted.
    """
    if request.content_type != "multipart/form-data":
        form = await _simple(request)
        admit(form.fields)
        return form
    form = Form(MultiDict(), {})
    try:
        await _read_parts(await request.multipart(), form, fields_max, file_max, admit)
        admit(form.fields)
    except (ValueError, LookupError):
        form.end_of_request()
        raise _no_form() from None
    except BaseException:
        form.end_of_request()
        raise
    return form


async def _read_parts(
    reader: MultipartReader,
    form: Form,
    fields_max: int,
    file_max: int | None,
    admit: Callable[[Mapping[str, str]], None],
) -> None:
    number = 0
    while (part := await reader.next()) is not None:
        number += 1
        if number > PARTS_MAX or not isinstance(part, BodyPartReader) or part.name is None:
            raise ValueError("a part without a name, or too many parts")
        if part.filename:
            if file_max == 0:
                raise Refusal(HTTPStatus.UNPROCESSABLE_ENTITY, "This form takes no file.")
            admit(form.fields)
            if part.name in form.files:
                raise ValueError("two files of one name")
            form.files[part.name] = await _to_disk(part, file_max)
            continue
        data = await _bounded(part, fields_max)
        fields_max -= len(data)
        # A browser sends a file that nobody has chosen as one without a name.
        if part.headers.get("Content-Type", "text/plain").startswith("text/"):
            form.fields.add(part.name, data.decode(part.get_charset(default="utf-8")))


async def _simple(request: web.Request) -> Form:
    try:
        posted = await request.post()
    except (ValueError, LookupError):
        # Of another encoding than it says, or cut off.
        raise _no_form() from None
    return Form(MultiDict((name, value) for name, value in posted.items() if isinstance(value, str)), {})


def _no_form() -> Refusal:
    return Refusal(HTTPStatus.BAD_REQUEST, "This is no form that the console can read.")


async def _bounded(part: BodyPartReader, bytes_max: int) -> bytes:
    data = bytearray()
    while chunk := await part.read_chunk(_CHUNK):
        data += chunk
        if len(data) > bytes_max:
            raise web.HTTPRequestEntityTooLarge(bytes_max, len(data))
    return bytes(data)


async def _to_disk(part: BodyPartReader, bytes_max: int | None) -> Upload:
    """Write a file as it comes; in a thread, since a disk may take its time."""
    # The file outlives this function, and is closed with the upload.
    file: IO[bytes] = tempfile.SpooledTemporaryFile(_SPOOLED_BYTES)  # noqa: SIM115
    try:
        size = looked = 0
        while chunk := await part.read_chunk(_CHUNK):
            size += len(chunk)
            if bytes_max is not None and size > bytes_max:
                raise Refusal(
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                    f"The file has more than {bytes_max >> 20} MiB, which is the most that can be sent here.",
                )
            is_due = size - looked >= _LOOK_BYTES
            looked = size if is_due else looked
            await asyncio.to_thread(_write, file, chunk, demands_room=is_due)
    except BaseException:
        file.close()
        raise
    return Upload(file)


def _write(file: IO[bytes], chunk: bytes, *, demands_room: bool) -> None:
    try:
        # Without any folder for temporary files this raises as writing does.
        if demands_room and shutil.disk_usage(tempfile.gettempdir()).free < SPARED_BYTES:
            raise Refusal(HTTPStatus.INSUFFICIENT_STORAGE, "The disk of the console has no room for this file.")
        file.write(chunk)
    except OSError as error:
        raise Refusal(
            HTTPStatus.INSUFFICIENT_STORAGE, f"The console cannot keep the file: {error.strerror or error}."
        ) from error
