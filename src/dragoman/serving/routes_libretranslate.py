"""The HTTP API of LibreTranslate, for its clients."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

from fastapi import APIRouter, Request

from dragoman.serving import schemas
from dragoman.serving.request_parsing import RequestError, cancel_on_disconnect
from dragoman.serving.served_documents import translate_blocks
from dragoman.serving.served_run import ServedRun
from dragoman.serving.service import Service
from dragoman.text.documents.document import document_suffixes
from dragoman.text.documents.html_document import HtmlDocument
from dragoman.text.documents.marked_text import MarkedText
from dragoman.text.documents.preserved_text import Preserve

RequestType = TypeVar("RequestType", bound=schemas.DetectRequest)


def routes(service: Service) -> APIRouter:
    """Return the routes of LibreTranslate: translate, detect, languages, suggest, health and frontend/settings."""
    router = APIRouter(tags=["LibreTranslate"], responses=schemas.ERROR_RESPONSES)

    async def accept(request: Request, model: type[RequestType]) -> RequestType:
        """Parse a request as `model`; reject it without text (`q`), without a valid API key or above the limits."""
        fields = await service.accept(request, model)
        if not fields.q:
            raise RequestError(400, model.missing_message.format("q"))
        return fields

    @router.post(
        "/translate",
        response_model_exclude_none=True,
        openapi_extra=schemas.request_body_schema(schemas.LibreTranslateRequest, forms=True),
    )
    async def translate(request: Request) -> schemas.LibreTranslateResponse:
        """Translate a text or a list of texts, by the first run for the language pair."""
        service.reject_if_full()
        fields = await accept(request, schemas.LibreTranslateRequest)
        texts = fields.texts
        alternatives, limit = fields.alternatives or 0, service.limits.max_alternatives
        if alternatives > limit:
            raise RequestError(400, f"at most {limit} alternatives can be requested, not {alternatives:,}")
        detected = None  # the language of the text, if the client does not give it
        if fields.source == "auto":
            language, confidence = service.detect_language("\n".join(texts), fields.target)
            detected = schemas.Detection(language=language, confidence=confidence)
        served = run_or_none(service, detected.language if detected else fields.source, fields.target)
        # the best translation of each text, and alternatives; the text itself if both languages are the same
        results: list[tuple[str, list[str]]] = [(text, []) for text in texts]
        if served is not None:
            translating = _translate(service, served, fields)
            results = await cancel_on_disconnect(request, translating, service.limits.timeout)
        response = schemas.LibreTranslateResponse(translatedText=[best for best, _ in results])
        if alternatives:
            response.alternatives = [others for _, others in results]
        if detected:
            response.detectedLanguage = [detected] * len(texts)
        return response if isinstance(fields.q, list) else _for_single_text(response)

    @router.post("/detect", openapi_extra=schemas.request_body_schema(schemas.DetectRequest, forms=True))
    async def detect(request: Request) -> list[schemas.Detection]:
        """Detect the language of a text among the languages of the runs, most probable first."""
        fields = await accept(request, schemas.DetectRequest)
        # if nothing can be detected: the only source language of the runs, or an error
        languages = service.detector("\n".join(fields.texts)) or [service.detect_language("")]
        return [schemas.Detection(language=language, confidence=confidence) for language, confidence in languages]

    @router.get("/languages")
    async def languages() -> list[schemas.LanguageInfo]:
        """List the languages and the languages that each is translated into."""
        return service.languages()

    @router.post("/suggest", openapi_extra=schemas.request_body_schema(schemas.SuggestRequest, forms=True))
    async def suggest(request: Request) -> schemas.SuggestResponse:
        """Submit a better translation; the service must have been started with a file for suggestions."""
        if service.suggestions is None:
            raise RequestError(403, "Suggestions are disabled on this server.")
        fields = await service.accept(request, schemas.SuggestRequest)
        for name in ("q", "s", "source", "target"):
            if not getattr(fields, name):
                raise RequestError(400, fields.missing_message.format(name))
        await asyncio.to_thread(service.suggestions.add, fields.q, fields.s, fields.source, fields.target)
        return schemas.SuggestResponse(success=True)

    @router.get("/health")
    async def health() -> schemas.HealthResponse:
        """Whether the service is up."""
        return schemas.HealthResponse(status="ok")

    @router.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """Settings that LibreTranslate's web page requests."""
        pair = next(iter(service.runs.values())).with_any_languages().pair
        languages = {} if pair is None else pair._asdict()
        names = {language.code: language.name for language in service.languages()}
        return {
            "apiKeys": service.keys.required,
            "keyRequired": service.keys.required,
            "charLimit": service.limits.max_characters,
            "frontendTimeout": 500,  # milliseconds
            "filesTranslation": True,
            "supportedFilesFormat": document_suffixes(),
            "suggestions": service.suggestions is not None,
            "language": {side: {"code": code, "name": names.get(code, code)} for side, code in languages.items()},
        }

    return router


async def _translate(
    service: Service, served: ServedRun, fields: schemas.LibreTranslateRequest
) -> list[tuple[str, list[str]]]:
    """Return the best translation of each text (or HTML page) by a run, and a list of different alternatives."""
    alternatives = fields.alternatives or 0
    # rendered: the best translations of all texts, then the second-best ones, and so on
    if fields.format != "html":
        blocks = [MarkedText(text) for text in fields.texts]  # without markup
        versions = await translate_blocks(service, served, blocks, Preserve(fields.preserve), alternatives)
        rendered = [[block.text for block in version] for version in versions]
    else:
        documents = [HtmlDocument.parse(text, fields.translate_attributes) for text in fields.texts]
        blocks = [block for document in documents for block in document.blocks]
        rendered = []
        for version in await translate_blocks(service, served, blocks, Preserve(fields.preserve), alternatives):
            translated = iter(version)  # the blocks (paragraphs, headings …) of one document after the other
            rendered.append([document.render([next(translated) for _ in document.blocks]) for document in documents])
    return [(best, [other for other in dict.fromkeys(others) if other != best]) for best, *others in zip(*rendered)]


def run_or_none(service: Service, source: str, target: str) -> ServedRun | None:
    """Return the run for two languages, or None if they are the same, so that nothing needs to be translated.

    Unless a run is multilingual, errors have the wording of LibreTranslate.
    """
    codes = [service.language_code(language) for language in (source, target)]
    names = {language.code: language.name for language in service.languages()}
    if codes[0] == codes[1] and codes[0] in names:
        return None
    if not any(served.is_multilingual for served in service.runs.values()):
        for language, code in zip((source, target), codes):
            if code not in names:
                raise RequestError(400, f"{language} is not supported")
        if not any(served.pair == tuple(codes) for served in service.runs.values()):
            source_name, target_name = (f"{names[code]} ({code})" for code in codes)
            raise RequestError(400, f"{target_name} is not available as a target language from {source_name}")
    return service.run_for_languages(source, target)


def _for_single_text(response: schemas.LibreTranslateResponse) -> schemas.LibreTranslateResponse:
    """Replace the lists of a response by their only items, for a text that was not sent in a list."""
    return schemas.LibreTranslateResponse.model_construct(
        **{name: value[0] for name, value in response if value is not None}
    )
