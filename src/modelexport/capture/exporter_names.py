"""The names of the exporters, for the option ``exporter``. Importing them imports no exporter."""

from __future__ import annotations

DYNAMO = "dynamo"
TRANSFORMERS = "transformers"
DYNAMO_WITH_CACHES = "dynamo-with-caches"
TORCHSCRIPT = "torchscript"
