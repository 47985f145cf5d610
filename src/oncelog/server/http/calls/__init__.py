"""What each route does: one module a noun."""
