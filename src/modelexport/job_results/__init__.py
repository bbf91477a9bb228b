"""What jobs leave on any storage: entries with their files, records of attempts, and the catalogue made from them."""

from __future__ import annotations

from modelexport.job_results.entries import Entry, EntryStore, StoredFile, hash_file
from modelexport.job_results.locations import Location
from modelexport.job_results.records import (
    LOGS,
    Failure,
    Record,
    RecordName,
    Status,
    key_in_names,
    latest_by_key,
    new_record_id,
    read_record,
    record_names,
    utc_time,
    write_record,
)
from modelexport.job_results.redaction import redacted, secret_values

__all__ = [
    "LOGS",
    "Entry",
    "EntryStore",
    "Failure",
    "Location",
    "Record",
    "RecordName",
    "Status",
    "StoredFile",
    "hash_file",
    "key_in_names",
    "latest_by_key",
    "new_record_id",
    "read_record",
    "record_names",
    "redacted",
    "secret_values",
    "utc_time",
    "write_record",
]
