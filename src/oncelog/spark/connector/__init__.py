"""``format("oncelog")``: the source, the sink, and what both are made of."""
