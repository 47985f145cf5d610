"""Taking a log over: fencing the old writer, recovery, handover between live writers."""
