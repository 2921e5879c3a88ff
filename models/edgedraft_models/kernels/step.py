"""The decoder: Llama and Qwen2 (RMS norm, rotary grouped-query attention, SwiGLU) as one function, `step`.

A step takes tokens of any mix of sequences. Each says where it stands in its sequence, which slot of the cache its key
and value go to, and which row of the slot table lists the entries that it attends to. So prefill, a batched step over
branches, verification of many sessions and catch-up are all the same call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm import IRModule, ir
from tvm.script.ir_builder import IRBuilder
from tvm.tirx import Var
from tvm.tirx.script import builder as T

from edgedraft.runtime.manifest import ModelConfig
from edgedraft.runtime.weights import (
    TensorSpec,
    layer_tensors,
    matrix_parts,
    scratch_widths,
    shared_tensors,
    top_block,
)
from edgedraft_models.kernels.attention import attend
from edgedraft_models.kernels.elementwise import add_and_norm, embed, rotate_and_cache, swiglu
from edgedraft_models.kernels.linear import FORMATS, WeightFormat, linear
from edgedraft_models.kernels.simd import (
    LANES,
    Buffer,
    Expr,
    exp,
    fill,
    for_tokens,
    hold,
    horizontal,
    horizontal_sum,
    lanes,
    let,
    local,
    splat,
    tree,
)

_DATA_FIELD = 1  # TVM's number for DLTensor.data in tvm_struct_get


def decoder_module(config: ModelConfig) -> IRModule:
    """Write the functions of a model's library.

    `step(n, m, weights, tokens, positions, slots, rows, picks, table, keys, values, rotary, residual, results, inputs,
    logits)` runs `n` tokens and gives the logits of `m` of them, named by `picks`. `weights` points to an array of
    DLTensors, of which only the data pointers are read, in the order of `edgedraft.runtime.weights.map_weights`.

    `top_blocks(m, logits, peaks, sums)` gives, for each block of `top_block` neighbouring logits, the largest and the
    sum of e^(logit − largest).

    Args:
        config: Shape of the model; see `edgedraft_models.compile.check_shape` for what must divide what.
    """
    return IRModule({"step": _Step(config).write(), "top_blocks": _top_blocks(config)})


class _Step:
    """Writes `step`."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.format: WeightFormat = FORMATS[config.quantization]
        self.heads_width = config.num_attention_heads * config.head_dim
        self.qkv_width = self.heads_width + 2 * config.num_key_value_heads * config.head_dim

    def write(self) -> Any:
        with IRBuilder() as builder, T.prim_func(s_tir=True):
            T.func_name("step")
            self._declare()
            shared, per_layer = shared_tensors(self.config), layer_tensors(self.config)
            outside = _bind_tensors(self.weights, shared, 0)
            self._embed(outside)
            with T.serial(0, self.config.num_hidden_layers) as layer:
                inside = _bind_tensors(self.weights, per_layer, len(shared) + layer * len(per_layer))
                self._attention(inside, layer * self.config.num_key_value_heads)
                self._feed_forward(inside)
            with T.If(self.m > 0), T.Then():
                self._head(outside)
        return builder.get()

    def _declare(self) -> None:
        config = self.config
        self.n, self.m = T.arg("n", T.int32()), T.arg("m", T.int32())
        self.weights = T.arg("weights", T.handle())
        chunk, sequences, context, slots, lines, positions, rows = (
            Var(name, "int64") for name in ("chunk", "sequences", "context", "slots", "lines", "positions", "rows")
        )
        self.tokens, self.positions, self.slots, self.rows, self.picks = (
            _argument(name, (chunk,), "int32") for name in ("tokens", "positions", "slots", "rows", "picks")
        )
        self.table = _argument("table", (sequences, context), "int32")
        self.keys, self.values = (_argument(name, (lines, slots, config.head_dim)) for name in ("keys", "values"))
        self.rotary = _argument("rotary", (positions, config.head_dim))
        results_width, inputs_width = scratch_widths(config)
        self.residual = _argument("residual", (chunk, config.hidden_size))
        self.results = _argument("results", (chunk, results_width))
        self.inputs = _argument("inputs", (chunk, inputs_width))
        # A line of logits starts wherever the one before it ends.
        self.logits = _argument("logits", (rows, config.vocab_size), align=4)

    def _embed(self, weights: Mapping[str, Buffer]) -> None:
        matrix = self._matrix(weights, "model.embed_tokens")
        width = self.config.hidden_size
        for_tokens(self.n, lambda t: embed(self.format, matrix, self.tokens[t], self.residual, self.results, t, width))

    def _attention(self, weights: Mapping[str, Buffer], first_line: Expr) -> None:
        config = self.config
        self._norm(weights["input_layernorm.weight"])
        name = "self_attn.c_attn" if config.model_type == "qwen2" else "self_attn.qkv_proj"
        self._product(weights, name, self.qkv_width, config.hidden_size)
        bias = weights.get(f"{name}.bias")

        def rotate(t: Expr) -> None:
            place = self.rotary, self.positions[t], self.slots[t]
            rotate_and_cache(config, self.results, bias, *place, self.keys, self.values, first_line, t)

        for_tokens(self.n, rotate)
        # Each head of each token by itself; what it finds takes the place of its query.
        with T.parallel(0, self.n * config.num_attention_heads) as task:
            head, token = let(T.truncdiv(task, self.n)), let(T.truncmod(task, self.n))
            line = first_line + T.truncdiv(head, config.num_attention_heads // config.num_key_value_heads)
            row, length, start = let(self.rows[token]), let(self.positions[token] + 1), head * config.head_dim
            entries = self.table, row, length, self.keys, self.values, line
            attend(self.results, token, start, *entries, self.results, config.head_dim)

        def lay_out(t: Expr) -> None:
            self.format.store_input(lambda at: self.results[t, lanes(at)], self.inputs, t, self.heads_width)

        for_tokens(self.n, lay_out)
        self._product(weights, "self_attn.o_proj", config.hidden_size, self.heads_width)

    def _feed_forward(self, weights: Mapping[str, Buffer]) -> None:
        hidden, inner = self.config.hidden_size, self.config.intermediate_size
        self._norm(weights["post_attention_layernorm.weight"])
        self._product(weights, "mlp.gate_up_proj", 2 * inner, hidden)
        for_tokens(self.n, lambda t: swiglu(self.format, self.results, self.inputs, t, inner))
        self._product(weights, "mlp.down_proj", hidden, inner)

    def _head(self, weights: Mapping[str, Buffer]) -> None:
        config = self.config
        self._norm(weights["model.norm.weight"], self.picks)
        matrix = self._matrix(weights, "model.embed_tokens" if config.tie_word_embeddings else "lm_head")
        linear(self.format, matrix, self.inputs, self.logits, self.m, config.vocab_size, config.hidden_size)

    def _norm(self, scale: Buffer, picks: Buffer | None = None) -> None:
        """Norm all tokens, or the picked ones, which then close ranks."""

        def norm(t: Expr) -> None:
            source = t if picks is None else let(picks[t])
            epsilon, width = self.config.rms_norm_eps, self.config.hidden_size
            add_and_norm(self.format, self.residual, self.results, source, scale, epsilon, self.inputs, t, width)

        for_tokens(self.n if picks is None else self.m, norm)

    def _product(self, weights: Mapping[str, Buffer], name: str, rows: int, columns: int) -> None:
        linear(self.format, self._matrix(weights, name), self.inputs, self.results, self.n, rows, columns)

    def _matrix(self, weights: Mapping[str, Buffer], name: str) -> list[Buffer]:
        return [weights[part] for part in matrix_parts(self.config, name)]


def _top_blocks(config: ModelConfig) -> Any:
    size = top_block(config.vocab_size)
    blocks = config.vocab_size // size
    with IRBuilder() as builder, T.prim_func(s_tir=True):
        T.func_name("top_blocks")
        m = T.arg("m", T.int32())
        logit_rows, block_rows = Var("logit_rows", "int64"), Var("block_rows", "int64")
        logits = _argument("logits", (logit_rows, config.vocab_size))
        peaks, sums = _argument("peaks", (block_rows, blocks)), _argument("sums", (block_rows, blocks))
        with T.parallel(0, blocks) as block, T.serial(0, m) as row:
            vectors = [let(logits[row, lanes(block * size + start)]) for start in range(0, size, LANES)]
            peak = hold(horizontal(hold(tree(T.max, vectors)), T.max))
            total = local(1)
            fill(total, 1)
            for vector in vectors:
                T.buffer_store(total, total[lanes(0)] + exp(vector - splat(peak)), [lanes(0)])
            T.buffer_store(peaks, peak, [row, block])
            T.buffer_store(sums, horizontal_sum(total[lanes(0)]), [row, block])
    return builder.get()


def _argument(name: str, shape: tuple[Expr, ...], dtype: str = "float32", align: int = 64) -> Buffer:
    return T.match_buffer(T.arg(name, T.handle()), shape, dtype, align=align)


def _bind_tensors(table: Expr, specs: Mapping[str, TensorSpec], start: Expr) -> dict[str, Buffer]:
    """Buffers over the data pointers of consecutive DLTensors."""
    buffers = {}
    for number, (name, spec) in enumerate(specs.items()):
        pointer = Var("data", ir.PointerType(ir.PrimType(spec.dtype)))
        data = T.Bind(T.tvm_struct_get(table, start + number, _DATA_FIELD, pointer.ty), var=pointer)
        buffers[name] = T.decl_buffer(spec.shape, spec.dtype, data=data, layout=None)
    return buffers
