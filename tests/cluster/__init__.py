"""Batches on S3 and on Ray. `make cluster` installs what these need, and runs them; `make test` skips them."""
