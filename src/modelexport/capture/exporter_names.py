"""The names of the exporters: what callers write as ``exporter=``, known without importing any of them."""

from __future__ import annotations

DYNAMO = "dynamo"
TRANSFORMERS = "transformers"
DYNAMO_WITH_CACHES = "dynamo-with-caches"
TORCHSCRIPT = "torchscript"
