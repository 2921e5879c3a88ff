"""Compiled models on a CPU: artifact folders, the KV cache and the forward pass.

`compiled` is the entry (`CompiledModel`); `manifest` says what an artifact folder holds. Only `library` touches TVM's
runtime, and nothing here needs its compiler.
"""
