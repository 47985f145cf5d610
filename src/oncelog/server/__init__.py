"""``oncelog serve``: one process that holds the writers of a database, for clients over gRPC and HTTP."""
