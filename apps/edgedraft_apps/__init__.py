"""Applications on top of the SDK: the command line, the demo, and the tools around them."""
