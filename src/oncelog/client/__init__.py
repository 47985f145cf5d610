"""``oncelog://``: the same surface over the wire. Every class here is one of the embedded ones, with other insides."""
