"""The gRPC side: each service translates messages of the wire into calls of the server, and errors into trailers."""
