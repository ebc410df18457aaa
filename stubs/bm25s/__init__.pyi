"""What the retrieval benchmark uses of bm25s, which ships no types."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

class BM25:
    def index(self, corpus: object, *, show_progress: bool = ...) -> None: ...
    def retrieve(
        self, query_tokens: object, *, k: int = ..., show_progress: bool = ...
    ) -> tuple[NDArray[Any], NDArray[Any]]: ...

def tokenize(texts: Sequence[str], *, show_progress: bool = ..., return_ids: bool = ...) -> Any: ...
