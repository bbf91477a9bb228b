"""Read jobs from TOML, JSON lines, CSV, lists of models and patterns; expand defaults and matrices, give names."""

from __future__ import annotations

import csv
import glob
import hashlib
import io
import itertools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import msgspec

from modelexport.batching.jobs import FIELDS, Job, check_fields, check_name, make_job, similar
from modelexport.display import shortened
from modelexport.errors import InputError
from modelexport.input_options import existing_path

_LISTS = ".toml", ".jsonl", ".ndjson", ".csv"
_MATRIX = "matrix"
_LONGEST = 80
_MOST_JOBS = 100_000
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")

Fields = dict[str, Any]


def read_jobs(
    sources: Iterable[str | Path | Mapping[str, Any] | Job],
    *,
    from_file: str | Path | None = None,
    defaults: Mapping[str, Any] | None = None,
) -> list[Job]:
    """Every job that the sources name, with a name of its own.

    Args:
        sources: Files of jobs, model references, patterns such as ``models/*``, or the jobs themselves.
        from_file: A file with a model reference in each line.
        defaults: Fields of every job that does not set them itself.

    Raises:
        InputError: A file cannot be read, or a job is wrong.
    """
    if defaults is not None and not isinstance(defaults, Mapping):
        raise InputError(f"defaults are a dict of fields, not {type(defaults).__name__}")
    if from_file is not None and not isinstance(from_file, str | Path):
        raise InputError(f"from_file is the path of a list of models, not {type(from_file).__name__}")
    base = dict(defaults or {})
    check_fields(base, "the options")
    found: list[tuple[str, Fields, Fields]] = []
    for number, source in enumerate(sources, 1):
        if isinstance(source, Job):
            found.append((f"job {number}", msgspec.to_builtins(source), {}))
        elif isinstance(source, Mapping):
            found.append((f"job {number}", dict(source), {}))
        elif Path(source).suffix.lower() in _LISTS and not _is_folder(str(source)):
            found += _read_file(Path(source))
        else:
            found.append((str(source), {"model": str(source)}, {}))
    if from_file is not None:
        found += _read_ids(Path(from_file))
    jobs = [job for where, fields, shared in found for job in _expanded(where, fields, {**base, **shared})]
    if not jobs:
        raise InputError("there are no jobs: give a file of jobs, a pattern that matches models, or --from-file")
    return _named(jobs)


def _is_folder(source: str) -> bool:
    path = existing_path(source)
    return path is not None and path.is_dir()


def _read_file(path: Path) -> list[tuple[str, Fields, Fields]]:
    text = _read_text(path)
    kind = path.suffix.lower()
    if kind == ".toml":
        return _read_toml(path, text)
    if kind == ".csv":
        return _read_csv(path, text)
    return _read_json_lines(path, text)


def _read_text(path: Path) -> str:
    try:
        # Excel begins files in UTF-8 with a byte order mark.
        return path.read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def _read_toml(path: Path, text: str) -> list[tuple[str, Fields, Fields]]:
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{path} is not TOML: {error}") from error
    parts = ("defaults", _MATRIX, "job")
    for name in content:
        if name not in parts:
            raise InputError(f"{path}: unknown table {name!r}; {similar(name, list(parts))}")
    defaults, matrix, jobs = (content.get(name) for name in parts)
    for name, value in (("defaults", defaults), (_MATRIX, matrix)):
        if value is not None and not isinstance(value, dict):
            raise InputError(f"{path}: {name} is not a table: write [{name}]")
    check_fields(defaults or {}, f"{path}, defaults")
    shared = {**(defaults or {}), **({_MATRIX: matrix} if matrix else {})}
    if not isinstance(jobs, list) or not all(isinstance(job, dict) for job in jobs):
        raise InputError(f"{path} has no jobs: write one [[job]] table for each model")
    return [(f"{path}, job {number}", job, shared) for number, job in enumerate(jobs, 1)]


def _read_json_lines(path: Path, text: str) -> list[tuple[str, Fields, Fields]]:
    found: list[tuple[str, Fields, Fields]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            job = json.loads(line, object_pairs_hook=_without_repetition)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}: not JSON: {error}") from error
        if not isinstance(job, dict):
            raise InputError(f"{path}, line {number}: a job is a JSON object, not a {type(job).__name__}")
        found.append((f"{path}, line {number}", job, {}))
    return found


def _without_repetition(pairs: list[tuple[str, Any]]) -> Fields:
    repeated = [name for name, number in Counter(name for name, _ in pairs).items() if number > 1]
    if repeated:
        raise ValueError(f"the field {repeated[0]!r} is there twice")
    return dict(pairs)


def _read_csv(path: Path, text: str) -> list[tuple[str, Fields, Fields]]:
    reader = csv.DictReader(io.StringIO(text), restkey="", strict=True)
    found: list[tuple[str, Fields, Fields]] = []
    try:
        check_fields({name or "": None for name in reader.fieldnames or ()}, f"{path}, line 1")
        if len(set(reader.fieldnames or ())) < len(reader.fieldnames or ()):
            raise InputError(f"{path}, line 1: two columns have the same name")
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if "" in row:
                raise InputError(f"{where}: there are more cells than columns")
            given = {name: value for name, value in row.items() if value}
            found.append((where, {name: _cell(name, value, where) for name, value in given.items()}, {}))
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}: not CSV: {error}") from error
    return found


def _cell(name: str, text: str, where: str) -> Any:
    """The value of a cell, as the type of its field has it; lists have a semicolon between their parts."""
    kinds = get_args(FIELDS[name]) or (FIELDS[name],)
    if FIELDS[name] == tuple[str, ...]:
        return [part.strip() for part in text.split(";") if part.strip()]
    if bool in kinds:
        if text.lower() not in (*_TRUE, *_FALSE):
            raise InputError(f"{where}: field {name!r} is {text!r}: write true or false")
        return text.lower() in _TRUE
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError as error:
                raise InputError(f"{where}: field {name!r} is {shortened(text, _LONGEST)!r}, not a number") from error
    return text


def _read_ids(path: Path) -> list[tuple[str, Fields, Fields]]:
    lines = [line.strip() for line in _read_text(path).splitlines()]
    return [
        (f"{path}, line {number}", {"model": line}, {})
        for number, line in enumerate(lines, 1)
        if line and not line.startswith("#")
    ]


def _expanded(where: str, fields: Fields, shared: Fields) -> Iterator[tuple[str, Job, str]]:
    """The jobs of one description: for each model that a pattern matches, and each combination of the matrix."""
    check_fields(fields, where, (_MATRIX,))
    merged = {**shared, **fields}
    # A field of the job itself is not one of the file's matrix.
    axes = {name: values for name, values in (shared.get(_MATRIX) or {}).items() if name not in fields}
    own = fields.get(_MATRIX) or {}
    if not isinstance(own, dict):
        raise InputError(f"{where}: matrix is not a table of lists: write matrix = {{ opset = [18, 20] }}")
    axes |= own
    merged.pop(_MATRIX, None)
    _check_matrix(axes, where)
    combinations = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    models = _models(merged.get("model"), where)
    if merged.get("name") and len(models) > 1:
        raise InputError(f"{where}: name is {merged['name']!r}, but {merged['model']!r} matches {len(models)} models")
    for model in models:
        for values in combinations:
            job = make_job({**merged, **({} if model is None else {"model": model}), **values}, where)
            suffix = "".join(f"-{_slug(_axis_text(name, value))}" for name, value in values.items())
            yield where, job, suffix


def _check_matrix(axes: Fields, where: str) -> None:
    check_fields(axes, f"{where}, matrix")
    for name, values in axes.items():
        if name in ("model", "name") or not isinstance(values, list) or not values:
            raise InputError(f"{where}, matrix: {name} must be a list of values, and neither model nor name")
    if len(list(itertools.islice(itertools.product(*axes.values()), _MOST_JOBS + 1))) > _MOST_JOBS:
        raise InputError(f"{where}: the matrix has over {_MOST_JOBS:,} combinations")


def _axis_text(name: str, value: Any) -> str:
    text = "-".join(map(str, value)) if isinstance(value, list) else str(value)
    return text if isinstance(value, str | list) else f"{name}{text}"


def _models(model: Any, where: str) -> Sequence[str | None]:
    """The models that a pattern matches; the reference itself if it is none."""
    if not isinstance(model, str) or ":" in model or not glob.has_magic(model) or existing_path(model):
        return [None]
    # Not Path.glob, which has no patterns with a folder in front of them, or an absolute one.
    found = glob.glob(model, recursive=True)  # noqa: PTH207
    matches = [path for path in sorted(found) if _is_model(Path(path))]
    if not matches:
        raise InputError(f"{where}: no model matches {model!r}: a HuggingFace folder with config.json, or a .pt2 file")
    return matches


def _is_model(path: Path) -> bool:
    return path.suffix == ".pt2" if path.is_file() else (path / "config.json").is_file()


def _named(found: Sequence[tuple[str, Job, str]]) -> list[Job]:
    """The jobs, each with a name of its own; equal jobs once."""
    named: dict[str, tuple[str, Job]] = {}
    for where, job, suffix in found:
        name = f"{job.name or _slug(job.model)}{suffix}"
        if len(name) > _LONGEST:
            digest = hashlib.sha256(f"{job.model}{suffix}".encode()).hexdigest()[:8]
            name = f"{name[: _LONGEST - 9].rstrip('-.')}-{digest}"
        check_name(name, where)
        complete = msgspec.structs.replace(job, name=name)
        if name in named and named[name][1] != complete and not job.name:
            digest = hashlib.sha256(msgspec.json.encode(job)).hexdigest()[:8]
            complete = msgspec.structs.replace(job, name=f"{name}-{digest}")
        other = named.setdefault(complete.name, (where, complete))
        if other[1] != complete:
            raise InputError(
                f"{where}: job {other[0]!r} has the name {complete.name!r} as well: give each its own name"
            )
    return [job for _, job in named.values()]


def _slug(text: str) -> str:
    """A text as the name of a folder."""
    path = existing_path(text) if ":" not in text else None
    if path is not None:
        text = path.resolve().name
    text = re.sub(r"\.py:", "-", text)
    return re.sub(r"[^A-Za-z0-9._+]+", "-", text).strip("-._") or "model"
