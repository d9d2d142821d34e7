"""Cap'n Proto as the delivery service speaks it: structs, stream framing, RPC messages, NodeService."""
