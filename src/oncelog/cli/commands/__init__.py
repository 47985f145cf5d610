"""One module a noun: ``oncelog log …``, ``oncelog queue …``."""
