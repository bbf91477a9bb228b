"""What jobs leave on any storage: entries with their files, records of attempts, and the catalogue made from them."""

from __future__ import annotations

from modelexport.job_results.cache_contents import CacheContents, cache_information, cache_schema, prune_cache
from modelexport.job_results.catalogue import Catalog, read_catalog
from modelexport.job_results.catalogue_reports import (
    CatalogStats,
    catalog_schema,
    catalog_stats,
    printed_job,
    printed_rows,
)
from modelexport.job_results.changes import CatalogChanges, JobChange, compare_catalogs
from modelexport.job_results.entries import Entry, EntryStore, hash_file
from modelexport.job_results.index_page import write_index
from modelexport.job_results.locations import Location, user_cache
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
from modelexport.job_results.stored_results import StoredFile

__all__ = [
    "LOGS",
    "CacheContents",
    "Catalog",
    "CatalogChanges",
    "CatalogStats",
    "Entry",
    "EntryStore",
    "Failure",
    "JobChange",
    "Location",
    "Record",
    "RecordName",
    "Status",
    "StoredFile",
    "cache_information",
    "cache_schema",
    "catalog_schema",
    "catalog_stats",
    "compare_catalogs",
    "hash_file",
    "key_in_names",
    "latest_by_key",
    "new_record_id",
    "printed_job",
    "printed_rows",
    "prune_cache",
    "read_catalog",
    "read_record",
    "record_names",
    "redacted",
    "secret_values",
    "user_cache",
    "utc_time",
    "write_index",
    "write_record",
]
