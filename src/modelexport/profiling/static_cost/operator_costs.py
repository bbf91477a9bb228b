"""Which formula counts the arithmetic of which ONNX operator, and which operators move no memory or little."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from modelexport.profiling.static_cost.operator_formulas import (
    SOFTMAX_STEPS,
    Cost,
    attention,
    clip,
    convolution,
    each_input,
    each_output,
    einsum,
    fused_matmul,
    gelu,
    gemm,
    interpolation,
    matmul,
    multi_head_attention,
    norm,
    nothing,
    packed_attention,
    pooling,
    recurrent,
    transposed_convolution,
    variadic,
)


def cost_of(node: onnx.NodeProto) -> Cost | None:
    """The function that counts the arithmetic of a node's operator; None if the operator is not in the table."""
    return _TABLES.get(node.domain, {}).get(node.op_type)


def _words(text: str, cost: Cost) -> dict[str, Cost]:
    return dict.fromkeys(text.split(), cost)


# Results that are the memory of an input, or known without running: neither arithmetic nor memory traffic.
VIEWS = frozenset({"Constant", "Flatten", "Identity", "Reshape", "Shape", "Size", "Squeeze", "Unsqueeze"})
# Operators that read only the elements of their result from their first input.
PARTIAL_READS = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})

_STANDARD: Mapping[str, Cost] = {
    **_words(" ".join(sorted(VIEWS | PARTIAL_READS)), nothing),
    **_words(
        "BitCast Cast CastLike CenterCropPad Col2Im Compress Concat ConcatFromSequence ConstantOfShape DepthToSpace "
        "Dropout Expand EyeLike If Loop MaxUnpool NonZero OneHot Optional OptionalGetElement OptionalHasElement Pad "
        "Range ReverseSequence Scan Scatter ScatterElements ScatterND SequenceAt SequenceConstruct SequenceEmpty "
        "SequenceErase SequenceInsert SequenceLength SequenceMap SpaceToDepth Split SplitToSequence TensorScatter Tile "
        "Transpose Trilu Where",
        nothing,
    ),
    **_words(
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil Cos "
        "Cosh Div Elu Equal Erf Exp Floor Greater GreaterOrEqual IsInf IsNaN LeakyRelu Less LessOrEqual Log Mod Mul "
        "Neg Not Or PRelu Pow Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Tan Tanh "
        "ThresholdedRelu Xor",
        each_output(1),
    ),
    **_words("Celu Mish RotaryEmbedding Selu Shrink Swish", each_output(3)),
    **_words("HardSigmoid", each_output(4)),
    **_words("HardSwish", each_output(5)),
    **_words("Gelu", gelu),
    **_words("Clip", clip),
    **_words("Sum Max Min", variadic()),
    **_words("Mean", variadic(for_output=1)),
    **_words("Softmax LogSoftmax", each_output(SOFTMAX_STEPS)),
    **_words("ReduceSum ReduceMax ReduceMin ReduceProd ArgMax ArgMin CumSum CumProd Hardmax", each_input(1)),
    **_words("ReduceMean ReduceLogSum", each_input(1, for_output=1)),
    **_words("ReduceL1 ReduceSumSquare", each_input(2)),
    **_words("ReduceL2 ReduceLogSumExp", each_input(2, for_output=1)),
    **_words("GlobalMaxPool", each_input(1)),
    **_words("GlobalAveragePool", each_input(1, for_output=1)),
    **_words("GlobalLpPool", each_input(2, for_output=1)),
    **_words("MaxPool AveragePool LpPool", pooling),
    # Subtract the mean, divide by the deviation, scale, add the bias; statistics are known.
    **_words("BatchNormalization", each_input(4)),
    # Mean, subtract, square, sum, divide, scale; the bias is one more.
    **_words("LayerNormalization InstanceNormalization GroupNormalization", norm(6, bias=2)),
    **_words("MeanVarianceNormalization", each_input(5)),
    **_words("RMSNormalization", each_input(4)),
    **_words("LpNormalization", each_input(3)),
    **_words("QuantizeLinear", each_output(3)),
    **_words("DynamicQuantizeLinear", each_output(5)),
    **_words("DequantizeLinear", each_output(2)),
    **_words("MatMul MatMulInteger QLinearMatMul", matmul),
    **_words("Gemm", gemm),
    **_words("Conv DeformConv", convolution(1, bias=2)),
    **_words("ConvInteger", convolution(1, bias=99)),
    **_words("QLinearConv", convolution(3, bias=8)),
    **_words("ConvTranspose", transposed_convolution),
    **_words("Einsum", einsum),
    **_words("Attention", attention),
    # 4 sums and 4 activations, 3 steps for the cell state, 2 for the hidden state.
    **_words("LSTM", recurrent(4, 13, peepholes=7)),
    # 3 sums and 3 activations, the reset, and 4 steps to mix the old state with the new.
    **_words("GRU", recurrent(3, 11)),
    **_words("RNN", recurrent(1, 2)),
    **_words("Resize Upsample", interpolation(b"nearest", every_axis=False)),
    **_words("GridSample", interpolation(b"linear", every_axis=True)),
}

# What onnxruntime's optimizer writes.
_ONNXRUNTIME: Mapping[str, Cost] = {
    **_words("FusedMatMul TransposeMatMul", fused_matmul),
    **_words("MatMulNBits MatMulIntegerToFloat DynamicQuantizeMatMul", matmul),
    **_words("FusedGemm", gemm),
    **_words("FusedConv NhwcFusedConv", convolution(1, bias=2)),
    **_words("Gelu", gelu),
    **_words("BiasGelu", each_output(6)),
    **_words("FastGelu", each_output(9)),
    **_words("QuickGelu", each_output(3)),
    **_words("SkipLayerNormalization", norm(8, bias=3)),
    **_words("SkipSimplifiedLayerNormalization", norm(5, bias=3)),
    **_words("SimplifiedLayerNormalization", each_input(4)),
    **_words("Attention QAttention", packed_attention),
    **_words("MultiHeadAttention GroupQueryAttention", multi_head_attention),
    **_words("RotaryEmbedding", each_output(3)),
}

_TABLES: Mapping[str, Mapping[str, Cost]] = {
    "": _STANDARD,
    "ai.onnx": _STANDARD,
    "com.microsoft": _ONNXRUNTIME,
}
