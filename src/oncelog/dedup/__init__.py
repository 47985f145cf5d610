"""Pure "have I seen this?": identities and fingerprints of records, and the window of those seen lately."""
