"""Selection of the run that answers a request: by name, by languages, or by a weighted route."""

from __future__ import annotations

from collections.abc import Iterable

from dragoman.errors import UserError, unknown_name
from dragoman.run.language_detection import LanguageDetector
from dragoman.serving.request_parsing import RequestError
from dragoman.serving.request_record import request_record
from dragoman.serving.schemas import LanguageInfo
from dragoman.serving.served_run import ServedRun
from dragoman.serving.weighted_routes import RouteBy, WeightedRoute, check_routes
from dragoman.text.language_names import language_name

MIN_TARGET_CONFIDENCE = 50  # in per cent, above which a text is believed to be in the target language already


class RunSelector:
    """The served runs and routes, and how a request selects one of them."""

    def __init__(self) -> None:
        """Begin without runs and routes."""
        self.runs: dict[str, ServedRun] = {}  # by name
        self.routes: dict[str, WeightedRoute] = {}  # by name; a route divides requests among runs by weights
        self.route_by: RouteBy = "client"  # what gets the same run of a route each time: a client, or a text
        self.detector = LanguageDetector()

    def set_routes(self, routes: Iterable[WeightedRoute], names: Iterable[str], route_by: RouteBy = "client") -> None:
        """Divide the requests to `routes` among runs by weight.

        `names` are those of all runs. The same client, or the same text (`route_by`), always gets the same run.
        """
        self.routes, self.route_by = check_routes(routes, names), route_by

    def check_route_languages(self) -> None:
        """Raise a UserError if the runs of a route, among which its requests are divided, have different languages."""
        for route in self.routes.values():
            first, *others = (self.runs[name] for name in route.weights)
            for other in others:
                if other.directions != first.directions:
                    raise UserError(
                        f"the runs {first.name} and {other.name} of the route {route.name!r} have different languages, "
                        "but a route (a name under which several runs answer, each with a share of the requests) needs "
                        "runs of the same languages: remove one of the two from the route"
                    )

    def _run_of_route(self, route: WeightedRoute) -> ServedRun:
        """Return the run that a route, which divides requests among runs by weights, selects for the present request.

        The choice depends on the texts of the request or on its client (`route_by`): the same ones get the same run.
        """
        record = request_record()
        by_text = self.route_by == "text" and record.texts  # a request without texts is routed by its client
        return self.runs[route.choose("\n".join(record.texts) if by_text else record.identity)]

    def languages(self) -> list[LanguageInfo]:
        """Return all languages of the runs, each with the languages that it is translated into."""
        targets: dict[str, dict[str, None]] = {}  # ordered sets
        for served in self.runs.values():
            for source, codes in served.directions.items():  # source language and all its target languages
                targets.setdefault(source, {}).update(dict.fromkeys(codes))
        served_codes = dict.fromkeys([*targets, *(code for others in targets.values() for code in others)])
        return [
            LanguageInfo(code=code, name=language_name(code), targets=[*targets.get(code, ())]) for code in served_codes
        ]

    def language_code(self, language: str) -> str:
        """Normalize the code of a language: EN and en-GB become en, unless a run that is not multilingual has en-gb."""
        code = language.strip().lower().replace("_", "-")
        served_codes = {
            code for served in self.runs.values() if not served.is_multilingual for code in served.pair or ()
        }
        return code if code in served_codes else code.split("-")[0]

    def run_for_languages(self, source: str, target: str) -> ServedRun:
        """Return the run for a language pair: that of the first route for it, or else the first run.

        A route divides requests among runs by weights. A multilingual run also knows its languages by other codes or
        names. If no run has the pair, it is a UserError (a multilingual run lacks a language) or a RequestError. The
        run is recorded for the log of the request.
        """
        language_error: UserError | None = None
        for served in (*map(self._run_of_route, self.routes.values()), *self.runs.values()):
            if not served.is_multilingual and served.pair == (
                self.language_code(source),
                self.language_code(target),
            ):
                return _record_run(served)
            if served.is_multilingual:
                try:
                    return _record_run(served.for_languages(source, target))
                except UserError as error:  # the multilingual run does not know one of them
                    language_error = error
        if language_error is not None:
            raise language_error
        pairs = [f"{run.pair.source} to {run.pair.target}" for run in self.runs.values() if run.pair is not None]
        raise RequestError(
            400, f"no run translates from {source!r} to {target!r}, only from {', '.join(dict.fromkeys(pairs))}"
        )

    def run_by_name(self, name: str) -> ServedRun:
        """Return the run with a name, and record it for the log; reject an unknown name (400), with a similar one."""
        if name not in self.runs:
            raise RequestError(400, str(unknown_name("run", name, [*self.runs, *self.routes])))
        return _record_run(self.runs[name])

    def resolve_run(self, name: str | None, source: str | None, target: str | None) -> ServedRun:
        """Return the run of this name or route, or (None) the one for these languages, or without them the only one.

        A route divides requests among runs by weights. A multilingual run is set to these languages, or to its
        default. Without a name and both languages, a route to all runs is chosen, if there is one. It is a RequestError
        if there are several runs and no such route, or if only one language is given and the run is not multilingual.
        The run is recorded for the log of the request.
        """
        if name is not None:
            served = self._run_of_route(self.routes[name]) if name in self.routes else self.run_by_name(name)
            return _record_run(served.for_languages(source, target))
        if source is not None and target is not None:
            return self.run_for_languages(source, target)
        routes_to_all = [route for route in self.routes.values() if {*self.runs} == {*route.weights}]
        served = self._run_of_route(routes_to_all[0]) if routes_to_all else next(iter(self.runs.values()))
        is_ambiguous = len(self.runs) > 1 and not routes_to_all
        if is_ambiguous or (not served.is_multilingual and (source is not None or target is not None)):
            raise RequestError(400, "say which run to use: give 'run', or 'source' and 'target'")
        return _record_run(served.for_languages(source, target))

    def detect_language(self, text: str, target: str | None = None) -> tuple[str, float]:
        """Return the most probable language of a text, and a confidence from 0 to 100.

        Only languages that are translated into `target` (None: into any) count, and `target` itself if it is more
        probable than all others together. If nothing is detected, the only source language is returned with confidence
        0; if there are several, or multilingual runs, it is a RequestError.
        """
        code = None if target is None else self.language_code(target)
        pairs = [served.pair for served in self.runs.values() if not served.is_multilingual and served.pair is not None]
        sources = [pair.source for pair in pairs if code in (None, pair.target)]
        for language, confidence in self.detector(text):  # most probable first
            if language in sources or (language == code and confidence > MIN_TARGET_CONFIDENCE):
                return language, confidence
        if len(set(sources)) != 1 or any(served.is_multilingual for served in self.runs.values()):
            raise RequestError(400, "the language of the text could not be detected: give it as 'source'")
        return sources[0], 0.0


def _record_run(served: ServedRun) -> ServedRun:
    """Record that a run answers the present request, and return it."""
    record = request_record()
    record.run, record.version = served.name, served.version
    return served
