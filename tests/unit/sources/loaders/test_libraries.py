"""What an error of a library means is found in what it was raised from."""

from __future__ import annotations

import itertools

import pytest

from modelexport.errors import ModelSourceError
from modelexport.sources.loaders.libraries import explain_load_error

pytest.importorskip("huggingface_hub")


def chained(*errors: Exception) -> Exception:
    """The first error, raised from the second, and so on."""
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    return errors[0]


@pytest.mark.parametrize(
    ("errors", "said"),
    [
        ((ValueError("a\nb"),), "m: loading it failed with ValueError: a b"),
        ((OSError("outer"), ModuleNotFoundError("no x")), "m: it needs a package that is not installed: no x"),
        (
            (ModuleNotFoundError("lazy"), RuntimeError("no such operator")),
            "m: importing a package that it needs failed with RuntimeError: no such operator",
        ),
        ((OSError("outer"), ModelSourceError("ours, as it is")), "ours, as it is"),
        ((OSError("config.json is no JSON"), UnicodeDecodeError("utf-8", b"", 0, 1, "bad")), "config.json is no JSON"),
    ],
)
def test_meaning_is_that_of_the_cause(errors: tuple[Exception, ...], said: str) -> None:
    assert said in str(explain_load_error("m", None, chained(*errors)))


def test_causes_that_go_round_in_a_circle_come_to_an_end() -> None:
    error = chained(ValueError("a"), ValueError("b"))
    assert error.__cause__ is not None
    error.__cause__.__cause__ = error
    assert "ValueError: a" in str(explain_load_error("m", None, error))
