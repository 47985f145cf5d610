"""A home on several stores: blocks on a quorum of nodes, everything else in one store."""
