"""Transports: how frames, already checked and encoded by the gate, reach a verifier."""
