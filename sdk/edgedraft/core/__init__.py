"""The pure core of the device: no I/O, no clock, no threads."""
