"""Bringing in whole files: staging, adoption, batch marks, conflicts."""
