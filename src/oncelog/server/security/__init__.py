"""Who may do what: tokens, certificates, scopes, sessions, signatures, the audit log. Both faces ask one function."""
