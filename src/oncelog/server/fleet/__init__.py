"""Several servers on one database: who they are, who holds a log, and how a call gets there."""
