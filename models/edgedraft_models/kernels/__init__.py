"""The decoder as TVM kernels for CPUs: one function that runs a whole step, whatever it is made of.

`step` composes it from `linear` (matrix products), `attention` and `elementwise` (norms, rotary embedding, SwiGLU);
`simd` is their vocabulary of vector operations.

Two rules hold everywhere. Sums run in one fixed order for every token, and every multiply-add is an explicit FMA, so
that a token's result does not depend on what else is in the batch. And all the functions write TIR through TVM's IR
builder: calling one emits code into the function under construction.
"""
