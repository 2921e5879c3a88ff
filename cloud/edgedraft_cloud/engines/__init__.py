"""Engines: what runs the target, behind one small interface."""
