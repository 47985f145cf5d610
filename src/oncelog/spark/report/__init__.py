"""The report of a pipeline or an audit, as one HTML page."""
