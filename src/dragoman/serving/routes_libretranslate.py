"""The HTTP interface of LibreTranslate, so that its clients can be used."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request

from dragoman.serving.html_text import HtmlText
from dragoman.serving.request_batching import DecodeOptions
from dragoman.serving.request_error import RequestError
from dragoman.serving.request_parsing import cancel_on_disconnect, client_address, parse_request, request_api_key
from dragoman.serving.schemas import (
    Detection,
    DetectRequest,
    HealthResponse,
    LanguageInfo,
    LibreTranslateRequest,
    LibreTranslateResponse,
    request_body_schema,
)
from dragoman.serving.service import ServedRun, Service


def routes(service: Service, errors: dict[int | str, dict[str, Any]]) -> APIRouter:
    router = APIRouter(tags=["LibreTranslate"])

    @router.post(
        "/translate",
        responses=errors,
        response_model_exclude_none=True,
        openapi_extra=request_body_schema(LibreTranslateRequest, forms=True),
    )
    async def translate(request: Request) -> LibreTranslateResponse:
        """Translate a text, or a list of them."""
        service.reject_if_full()
        asked = await parse_request(request, LibreTranslateRequest)
        service.authorize(client_address(request), request_api_key(request, asked.api_key))
        if not asked.q:
            raise RequestError(400, "there is no text: give one as 'q'")
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        service.check_text_size(texts)
        wanted = asked.alternatives or 0
        if wanted > service.limits.max_alternatives:
            raise RequestError(
                400, f"at most {service.limits.max_alternatives} alternatives can be given, not {wanted:,}"
            )
        guess = None
        if asked.source == "auto":
            language, confidence = service.detect_language("\n".join(texts), asked.target)
            guess = Detection(language=language, confidence=confidence)
        served = service.run_for_languages(guess.language if guess else asked.source, asked.target)
        work = _marked(served, texts) if asked.format == "html" else _plain(served, texts, wanted)
        found = await cancel_on_disconnect(request, work, service.limits.timeout)
        answer = LibreTranslateResponse(translatedText=[best for best, _ in found])
        if wanted:
            answer.alternatives = [others for _, others in found]
        if guess:
            answer.detectedLanguage = [guess] * len(texts)
        return answer if isinstance(asked.q, list) else _only(answer)

    @router.post("/detect", responses=errors, openapi_extra=request_body_schema(DetectRequest, forms=True))
    async def detect(request: Request) -> list[Detection]:
        """The language of a text, among those that the runs know; the likeliest first."""
        asked = await parse_request(request, DetectRequest)
        service.authorize(client_address(request), request_api_key(request, asked.api_key))
        if not asked.q:
            raise RequestError(400, "there is no text: give one as 'q'")
        texts = [asked.q] if isinstance(asked.q, str) else asked.q
        service.check_text_size(texts)
        found = service.detector("\n".join(texts)) or [service.detect_language("")]
        return [Detection(language=language, confidence=confidence) for language, confidence in found]

    @router.get("/languages")
    async def languages() -> list[LanguageInfo]:
        """The languages, and into which each is translated."""
        return [LanguageInfo(**one) for one in service.languages()]

    @router.get("/health")
    async def health() -> HealthResponse:
        """Whether the service is up."""
        return HealthResponse(status="ok")

    @router.get("/frontend/settings")
    async def settings() -> dict[str, Any]:
        """What a page of LibreTranslate asks for."""
        first = next(iter(service.runs.values())).pair
        names = {one["code"]: one["name"] for one in service.languages()}
        return {
            "apiKeys": service.keys.required,
            "keyRequired": service.keys.required,
            "charLimit": service.limits.max_characters,
            "frontendTimeout": 500,
            "filesTranslation": False,
            "supportedFilesFormat": [],
            "suggestions": False,
            "language": {side: {"code": code, "name": names[code]} for side, code in first._asdict().items()},
        }

    return router


async def _plain(served: ServedRun, texts: list[str], alternatives: int) -> list[tuple[str, list[str]]]:
    """The translation of each text, and others: the second best of every sentence, the third best, …"""
    way = DecodeOptions(served.beam_search(alternatives + 1) if alternatives else served.run.default_search)
    cut = [served.split(text) for text in texts]
    results = []
    for text, found in zip(cut, await served.translate(cut, way)):
        ranked = [[one, *one.alternatives] for one in found]
        ways = [
            text.join([some[min(rank, len(some) - 1)].text for some in ranked], served.pair.target)
            for rank in range(alternatives + 1)
        ]
        results.append((ways[0], list(dict.fromkeys(one for one in ways[1:] if one != ways[0]))))
    return results


async def _marked(served: ServedRun, texts: list[str]) -> list[tuple[str, list[str]]]:
    """The same for HTML, without others."""
    marked = [HtmlText(text) for text in texts]
    found = iter(await _plain(served, [text for one in marked for text in one.texts], 0))
    return [(one.join([next(found)[0] for _ in one.texts]), []) for one in marked]


def _only(answer: LibreTranslateResponse) -> LibreTranslateResponse:
    """The answer for one text, where lists of one would hold it."""
    return LibreTranslateResponse.model_construct(**{name: value[0] for name, value in answer if value is not None})
