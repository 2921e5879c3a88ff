"""The decoder: Llama and Qwen2 (RMS norm, rotary grouped-query attention, SwiGLU) as one function, `step`.

A step takes tokens of any mix of sequences. Each says where it stands in its sequence, which slot of the cache its key and
value go to, and which row of the slot table lists the entries that it attends to. So prefill, a batched step over
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
    horizontal,
    horizontal_sum,
    lanes,
    let,
    local,
    splat,
)

_DATA_FIELD = 1  # TVM's number for DLTensor.data in tvm_struct_get


def decoder_module(config: ModelConfig) -> IRModule:
    """Write the functions of a model's library.

    `step(n, m, weights, tokens, positions, slots, rows, picks, table, keys, values, rotary, residual, results, inputs,
    logits)` runs `n` tokens and gives the logits of `m` of them, named by `picks`. `weights` points to an array of DLTensors,
    of which only the data pointers are read, in the order of `edgedraft.runtime.weights.map_weights`.

    `top_blocks(m, logits, peaks, sums)` gives, for each block of `top_block` neighbouring logits, the largest and the sum of
    e^(logit − largest).

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
        config, hidden = self.config, self.config.hidden_size
        with IRBuilder() as builder:
            with T.prim_func(s_tir=True):
                T.func_name("step")
                n, m = T.arg("n", T.int32()), T.arg("m", T.int32())
                weights = T.arg("weights", T.handle())
                chunk, sequences, context, slots_total, lines, positions_total = (
                    Var(name, "int64")
                    for name in ("chunk", "sequences", "context", "slots_total", "lines", "positions")
                )
                tokens = _argument("tokens", (chunk,), "int32")
                positions = _argument("positions", (chunk,), "int32")
                slots = _argument("slots", (chunk,), "int32")
                rows = _argument("rows", (chunk,), "int32")
                picks = _argument("picks", (chunk,), "int32")
                table = _argument("table", (sequences, context), "int32")
                cache = (lines, slots_total, config.head_dim)
                keys, values = _argument("keys", cache), _argument("values", cache)
                rotary = _argument("rotary", (positions_total, config.head_dim))
                results_width, inputs_width = scratch_widths(config)
                residual = _argument("residual", (chunk, hidden))
                results = _argument("results", (chunk, results_width))
                inputs = _argument("inputs", (chunk, inputs_width))
                logits = _argument("logits", (Var("logit_rows", "int64"), config.vocab_size), align=4)

                shared = _bind_tensors(weights, shared_tensors(config), 0)
                embedding = [shared[part] for part in matrix_parts(config, "model.embed_tokens")]
                for_tokens(n, lambda t: embed(self.format, embedding, tokens[t], residual, results, t, hidden))

                per_layer = layer_tensors(config)
                with T.serial(0, config.num_hidden_layers) as layer:
                    layer_weights = _bind_tensors(weights, per_layer, len(shared) + layer * len(per_layer))

                    def norm(name: str, layer_weights: Mapping[str, Buffer] = layer_weights) -> None:
                        scale, epsilon = layer_weights[name], config.rms_norm_eps
                        for_tokens(
                            n,
                            lambda t: add_and_norm(
                                self.format, residual, results, t, scale, epsilon, inputs, t, hidden
                            ),
                        )

                    def product(
                        name: str, width: int, columns: int, layer_weights: Mapping[str, Buffer] = layer_weights
                    ) -> None:
                        matrix = [layer_weights[part] for part in matrix_parts(config, name)]
                        linear(self.format, matrix, inputs, results, n, width, columns)

                    norm("input_layernorm.weight")
                    qkv_name = "self_attn.c_attn" if config.model_type == "qwen2" else "self_attn.qkv_proj"
                    product(qkv_name, self.qkv_width, hidden)
                    bias = layer_weights.get(f"{qkv_name}.bias")
                    first_line = layer * config.num_key_value_heads
                    for_tokens(
                        n,
                        lambda t, bias=bias, line=first_line: rotate_and_cache(
                            config, results, bias, rotary, positions[t], slots[t], keys, values, line, t
                        ),
                    )
                    self._attention(n, results, table, rows, positions, keys, values, first_line)
                    for_tokens(
                        n,
                        lambda t: self.format.store_input(
                            lambda start: results[t, lanes(start)], inputs, t, self.heads_width
                        ),
                    )
                    product("self_attn.o_proj", hidden, self.heads_width)
                    norm("post_attention_layernorm.weight")
                    product("mlp.gate_up_proj", 2 * config.intermediate_size, hidden)
                    for_tokens(n, lambda t: swiglu(self.format, results, inputs, t, config.intermediate_size))
                    product("mlp.down_proj", hidden, config.intermediate_size)

                with T.If(m > 0), T.Then():
                    scale = shared["model.norm.weight"]
                    for_tokens(
                        m,
                        lambda t: add_and_norm(
                            self.format, residual, results, picks[t], scale, config.rms_norm_eps, inputs, t, hidden
                        ),
                    )
                    head = "model.embed_tokens" if config.tie_word_embeddings else "lm_head"
                    matrix = [shared[part] for part in matrix_parts(config, head)]
                    linear(self.format, matrix, inputs, logits, m, config.vocab_size, hidden)
        return builder.get()

    def _attention(
        self,
        n: Expr,
        results: Buffer,
        table: Buffer,
        rows: Buffer,
        positions: Buffer,
        keys: Buffer,
        values: Buffer,
        first_line: Expr,
    ) -> None:
        """Each head of each token by itself; its result takes the place of its query."""
        config = self.config
        shared_by = config.num_attention_heads // config.num_key_value_heads
        with T.parallel(0, n * config.num_attention_heads) as task:
            head, token = let(T.truncdiv(task, n)), let(T.truncmod(task, n))
            attend(
                results,
                token,
                head * config.head_dim,
                table,
                let(rows[token]),
                let(positions[token] + 1),
                keys,
                values,
                first_line + T.truncdiv(head, shared_by),
                results,
                config.head_dim,
            )


def _top_blocks(config: ModelConfig) -> Any:
    size = top_block(config.vocab_size)
    blocks = config.vocab_size // size
    with IRBuilder() as builder:
        with T.prim_func(s_tir=True):
            T.func_name("top_blocks")
            m = T.arg("m", T.int32())
            logit_rows, block_rows = Var("logit_rows", "int64"), Var("block_rows", "int64")
            logits = _argument("logits", (logit_rows, config.vocab_size))
            peaks, sums = _argument("peaks", (block_rows, blocks)), _argument("sums", (block_rows, blocks))
            with T.parallel(0, blocks) as block, T.serial(0, m) as row:
                vectors = [let(logits[row, lanes(block * size + start)]) for start in range(0, size, LANES)]
                largest = vectors[0]
                for vector in vectors[1:]:
                    largest = T.max(largest, vector)
                peak = let(horizontal(let(largest), T.max))
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
