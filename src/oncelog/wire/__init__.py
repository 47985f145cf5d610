"""The protocol between client and server: messages, frames, errors. It translates, and does no I/O."""
