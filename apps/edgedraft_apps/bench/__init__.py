"""Measuring: record real generations, load a verifier, and check the project's figures."""
