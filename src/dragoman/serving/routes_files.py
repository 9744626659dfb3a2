"""Translation of files, as in LibreTranslate's API: a file is uploaded, and its translation downloaded."""

from __future__ import annotations

import asyncio
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from dragoman.serving import schemas
from dragoman.serving.document_store import StoredDocument, safe_file_name
from dragoman.serving.request_guard import UPLOAD_PATH
from dragoman.serving.request_parsing import RequestError, UploadedFile, cancel_on_disconnect, read_upload
from dragoman.serving.request_record import request_record
from dragoman.serving.routes_libretranslate import run_or_none
from dragoman.serving.served_documents import translate_blocks
from dragoman.serving.service import Service
from dragoman.text.documents.document import Document, format_of_file
from dragoman.text.documents.preserved_text import Preserve

#: a document of a user must not run as a page of this service
DOWNLOAD_HEADERS = {
    "content-security-policy": "default-src 'none'; sandbox",
    "x-content-type-options": "nosniff",
    "cache-control": "private, no-store",
}


def routes(service: Service) -> APIRouter:
    """Return the routes /translate_file and /download_file."""
    router = APIRouter(tags=["LibreTranslate"], responses=schemas.ERROR_RESPONSES)

    @router.post(UPLOAD_PATH, openapi_extra=schemas.upload_schema(schemas.FileRequest))
    async def translate_file(request: Request) -> schemas.FileResponse:
        """Translate a document: text, HTML, Markdown, subtitles, Word, OpenDocument, PowerPoint; keep its structure."""
        service.reject_if_full()
        sent = await service.read_authorized(request, read_upload(request))
        fields, file = sent.validate(schemas.FileRequest), sent.file
        if file is None:
            raise RequestError(400, fields.missing_message.format("file"))
        document_format = format_of_file(file.name)
        if document_format is None:
            raise RequestError(400, "Invalid request: file format not supported")
        document = await asyncio.to_thread(document_format.parse, file.content, fields.translate_attributes)
        characters, limit = sum(len(block.text) for block in document.blocks), service.limits.max_file_characters
        request_record().texts, request_record().characters = [block.text for block in document.blocks], characters
        if characters > limit:
            raise RequestError(400, f"a document may have {limit:,} characters, but this one has {characters:,}")
        service.count_characters(request, fields.api_key, characters)
        translating = _translate(service, fields, file, document)
        content = await cancel_on_disconnect(request, translating, service.limits.file_timeout)  # seconds
        stored = StoredDocument(safe_file_name(file.name), document_format.media_type, content)
        url = request.url_for("download_file", filename=service.documents.add(stored))
        return schemas.FileResponse(translatedFileUrl=str(url))

    @router.get("/download_file/{filename}", response_class=Response, responses={404: {"model": schemas.ErrorResponse}})
    async def download_file(filename: str) -> Response:
        """Download a translated document, under the name that /translate_file returned."""
        document = service.documents.get(filename)
        if document is None:
            raise RequestError(404, "there is no such file, or it has expired: translate it again")
        disposition = f"attachment; filename*=UTF-8''{quote(document.name)}"
        headers = {**DOWNLOAD_HEADERS, "content-disposition": disposition}
        return Response(document.content, headers=headers, media_type=document.media_type)

    return router


async def _translate(service: Service, fields: schemas.FileRequest, file: UploadedFile, document: Document) -> bytes:
    """Return the translated file; one that is in the target language already is returned unchanged.

    `fields` has the languages and options of the request, `document` the parsed text of the file, in blocks such as
    paragraphs.
    """
    source = fields.source
    if source == "auto":  # detect it from the beginning of the text
        sample = "\n".join(block.text for block in document.blocks)[: service.limits.max_characters]
        source, _ = service.detect_language(sample, fields.target)
    served = run_or_none(service, source, fields.target)
    if served is None:  # the languages are the same
        return file.content
    if fields.run is not None:  # the request names a run or route for these languages
        served = service.resolve_run(fields.run, source, fields.target)
    best_version, *_ = await translate_blocks(service, served, document.blocks, Preserve(fields.preserve))
    return await asyncio.to_thread(document.render, best_version, served.target_language)
