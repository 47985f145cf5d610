"""Pure "have I seen this?": identities and fingerprints of records, and the window of those seen lately."""

from oncelog.dedup.identity import Hasher, content_id, content_ids
from oncelog.dedup.window import Window, WindowState

__all__ = ["Hasher", "Window", "WindowState", "content_id", "content_ids"]
