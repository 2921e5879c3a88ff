"""Drafters: the small models that run on the device, behind one interface."""
