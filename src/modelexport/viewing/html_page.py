"""The self-contained page: the built template with the data of one file inserted."""

from __future__ import annotations

import functools
import html
import importlib.resources

from modelexport.display import escaped
from modelexport.errors import ContractError

_DATA, _TITLE = "__MODEL_DATA__", "__MODEL_TITLE__"
# Inside of a script element no markup can begin without these; U+2028 and U+2029 end lines in older JavaScript.
_ESCAPES = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})
_FRAME_HEIGHT = 640


@functools.cache
def _template() -> tuple[str, str, str]:
    """The parts of the template before the title, between title and data, and after the data."""
    text = importlib.resources.files("modelexport.viewing").joinpath("page/template.html").read_text(encoding="utf-8")
    if text.count(_DATA) != 1 or text.count(_TITLE) != 1:
        raise ContractError(f"the template of the page has not one {_TITLE} and one {_DATA}: build it with make viewer")
    head, _, rest = text.partition(_TITLE)
    middle, _, tail = rest.partition(_DATA)
    return head, middle, tail


def html_page(title: str, data: bytes) -> str:
    """The page for data in JSON, whatever names it has."""
    head, middle, tail = _template()
    return f"{head}{escaped(title)}{middle}{data.decode().translate(_ESCAPES)}{tail}"


def html_frame(page: str) -> str:
    """The page for a notebook: in a frame that can run its scripts and reach nothing else."""
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{html.escape(page, quote=True)}" '
        f'style="width: 100%; height: {_FRAME_HEIGHT}px; border: 1px solid #8a94a0; border-radius: 4px"></iframe>'
    )
