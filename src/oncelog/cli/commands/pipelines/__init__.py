"""Commands about pipelines, and jobs of one line."""
