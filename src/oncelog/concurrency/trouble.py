"""Trouble in the background, told once: a line when it begins, a line when it is over."""

from __future__ import annotations

import logging


class Trouble:
    """Something that fails and is tried again. Nobody waits for it, so the standard log says that it fails.

    Lines have no ids, values or keys in them. Safe to share between threads: at worst a line comes twice.
    """

    def __init__(self, logger: str, what: str) -> None:
        """Name the logger, and what fails: ``what`` is the beginning of a sentence."""
        self._logger = logging.getLogger(logger)
        self._what = what
        self.begun = False
        """Whether it fails now."""

    def begin(self, error: BaseException) -> None:
        """Say that it fails, unless that was said."""
        if not self.begun:
            self.begun = True
            self._logger.warning("%s fails, and is tried again: %s", self._what, error)

    def end(self) -> None:
        """Say that it works again, if it did not."""
        if self.begun:
            self.begun = False
            self._logger.info("%s works again", self._what)
