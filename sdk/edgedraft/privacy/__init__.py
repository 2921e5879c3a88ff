"""What may leave the device and what may not: views of a prompt, detectors, cloak, guard, ledger and shaping."""
