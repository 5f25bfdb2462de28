"""What runs inside a peer's environment: the standard library, numpy and that peer, never foretrain."""
