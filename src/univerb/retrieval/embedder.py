"""The small embedding model that `univerb setup` installs, as a retrieval method."""

from functools import lru_cache

from univerb.locations import packaged_embedder
from univerb.retrieval.dense import Dense


@lru_cache(maxsize=1)
def default_embedder() -> Dense | None:
    """Return the method of the small embedding model, or None if it is not installed."""
    folder = packaged_embedder()
    return Dense(folder) if folder else None
