"""Profile a file: the time and memory of each module call, measured on the graph that the runtime executes."""

from __future__ import annotations
