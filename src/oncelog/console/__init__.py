"""The console: pages in a browser that show what a database holds, what was deduplicated, and what waits."""
