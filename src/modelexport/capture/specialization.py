"""What a trace fixed to the example inputs, and the notes on it.

A trace has the operators that ran for the example inputs. What Python code computed from their values is a constant in
it: torch calls that a specialization.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence

from modelexport.capture.source_places import SourcePlace
from modelexport.capture.tracer_warnings import TracerWarning

_MOST_NOTES = 20
_BY_INPUTS = "tracing fixed a value that depends on the inputs"
_PERHAPS_BY_INPUTS = "tracing fixed a value that may depend on the inputs"
_UNWARNED = "tracing fixed a value that depends on the inputs, unless this line is not run while tracing"
_NOT_BY_INPUTS = "tracing fixed a size, or a value that does not depend on the inputs"


@dataclasses.dataclass(frozen=True)
class Specialization:
    """What one capture fixed, and what else the exporter warned of.

    Attributes:
        warned: What the tracer warned of.
        reads: Where the model reads values that depend on the inputs into Python; None where that is not known.
    """

    warned: tuple[TracerWarning, ...]
    reads: tuple[SourcePlace, ...] | None

    @property
    def by_inputs(self) -> tuple[SourcePlace, ...]:
        """Where the tracer met a value that depends on the inputs, or may."""
        read = None if self.reads is None else {_line(place) for place in self.reads}
        places = (warning.place for warning in self.warned if warning.fixes_value)
        known = (place for place in places if place is not None)
        return tuple(dict.fromkeys(place for place in known if read is None or _line(place) in read))

    @property
    def anywhere(self) -> tuple[SourcePlace, ...]:
        """All places where something may have been fixed, those of `by_inputs` first."""
        places = (warning.place for warning in self.warned if warning.fixes_value)
        known = (place for place in places if place is not None)
        return tuple(dict.fromkeys((*self.by_inputs, *(self.reads or ()), *known)))

    @property
    def is_empty(self) -> bool:
        """Whether the model is known to read nothing, and the tracer had nothing to warn of."""
        return self.reads == () and not any(warning.fixes_value for warning in self.warned)

    def notes(self) -> tuple[str, ...]:
        """What a user should know of the capture."""
        return _in_few_lines(_by_importance(self))


def _by_importance(found: Specialization) -> Iterator[tuple[str, str, SourcePlace | None]]:
    by_inputs = {_line(place) for place in found.by_inputs}
    fixing = [warning for warning in found.warned if warning.fixes_value]
    for warning in fixing:
        if warning.place is not None and _line(warning.place) in by_inputs:
            yield _PERHAPS_BY_INPUTS if found.reads is None else _BY_INPUTS, warning.text, warning.place
    for place in found.reads or ():
        if _line(place) not in by_inputs:
            yield _UNWARNED, "", place
    for warning in found.warned:
        if not warning.fixes_value:
            yield "torch warns", warning.text, warning.place
    for warning in fixing:
        if warning.place is None or _line(warning.place) not in by_inputs:
            yield _NOT_BY_INPUTS, warning.text, warning.place


def _in_few_lines(found: Iterable[tuple[str, str, SourcePlace | None]]) -> tuple[str, ...]:
    """One note for each thing that is said of a line, however many modules run it; the first of them."""
    places: dict[tuple[str, str, tuple[str, int] | None], list[SourcePlace | None]] = {}
    for kind, text, place in found:
        places.setdefault((kind, text, None if place is None else _line(place)), []).append(place)
    notes = [_note(kind, text, same) for (kind, text, _), same in places.items()]
    if len(notes) > _MOST_NOTES:
        return (*notes[:_MOST_NOTES], f"and {len(notes) - _MOST_NOTES} more warnings of the exporter")
    return tuple(notes)


def _note(kind: str, text: str, places: Sequence[SourcePlace | None]) -> str:
    number = len(places) - 1
    others = f" and in {number} other {'module' if number == 1 else 'modules'}" if number else ""
    where = f" at {places[0]}{others}" if places[0] is not None else ""
    return f"{kind}{where}" + (f": {text}" if text else "")


def _line(place: SourcePlace) -> tuple[str, int]:
    return place.file, place.line
