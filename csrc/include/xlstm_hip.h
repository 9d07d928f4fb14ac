/* SPDX-License-Identifier: Apache-2.0 */
/* The framework-free C API of xlstm_hip. Calls take plain structs and return an error code; they allocate nothing and
 * keep no state.
 *
 * Shapes are B batch, NH heads, S tokens, DHQK and DHHV head dims. A packed call has B = 1 and cu_seqlens, N + 1 rising
 * token offsets from 0 to S; its states have N instead of B. Absent tensors have data = NULL.
 * The accumulation dtype ("wide") is float, or double when q is double. States, l and gate-sized results of the wide
 * dtype are contiguous; C alone may be bfloat16 (bfloat16_c). */
#ifndef XLSTM_HIP_H
#define XLSTM_HIP_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define XLSTM_API
#else
#define XLSTM_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum xlstm_status {
  XLSTM_OK = 0,
  XLSTM_INVALID_ARGUMENT = 1, /* xlstm_last_error() names the argument */
  XLSTM_WORKSPACE_TOO_SMALL = 2,
  XLSTM_UNSUPPORTED = 3
} xlstm_status;

typedef enum xlstm_dtype {
  XLSTM_FLOAT32 = 0,
  XLSTM_BFLOAT16 = 1,
  XLSTM_FLOAT16 = 2,
  XLSTM_FLOAT64 = 3,
  XLSTM_FLOAT8_E4M3FN = 4, /* this and the next: attention's tensors alone; xlstm_code says what they are */
  XLSTM_FLOAT8_E4M3FNUZ = 5,
  XLSTM_DTYPE_INT = -2147483647 - 1 /* any int may be stored, and is checked */
} xlstm_dtype;

typedef enum xlstm_gate { XLSTM_GATE_EXP = 0, XLSTM_GATE_SIGMOID = 1, XLSTM_GATE_INT = -2147483647 - 1 } xlstm_gate;

/* q, k, v, h: (B, NH, S, D) with D contiguous; gates: (B, NH, S). Strides of B, NH, S count elements. */
typedef struct xlstm_tensor {
  void* data;
  xlstm_dtype dtype;
  int64_t stride[3];
} xlstm_tensor;

/* The inputs of every mLSTM call. */
typedef struct xlstm_mlstm {
  int64_t batch, heads, length, dqk, dhv;
  const int64_t* cu_seqlens; /* sequences + 1 offsets, or NULL: every batch row is a sequence */
  int64_t sequences;         /* N with cu_seqlens, else ignored */
  xlstm_gate gate;
  int32_t normalize;       /* sigmoid gate only: divide by max(|l|, 1) + eps */
  int32_t normalizer_grad; /* 1: exact gradients; 0: the normaliser is a constant in backward */
  double eps;
  double gate_soft_cap; /* recurrent: i and f become cap tanh(x / cap); 0: no cap, which the other calls require */
  int64_t chunk_size;
  xlstm_tensor q, k, v, i, f;
  const void *c_initial, *n_initial, *m_initial; /* (N, NH, DHQK, DHHV), (N, NH, DHQK), (N, NH); all or none */
  /* 1: c_initial and c_last are bfloat16, for the recurrent call of one token, not of double; the new C is rounded
   * stochastically (csrc/mlstm/recurrence.h). 0: they have the wide dtype, as n and m always have. */
  int32_t bfloat16_c;
  /* Tuning parameters: 0 lets the plan choose, and a value without a kernel is an error. */
  int64_t segments;     /* chunkwise and backward: parts of a sequence, each of a chunk or more */
  int64_t walk_chunk;   /* chunkwise and backward on a GPU: tokens of a chunk, 16 or 32, in the common schedule */
  int64_t step_columns; /* recurrent on a GPU: columns of C in a block, 8, 16 or 32, if C is kept in registers */
} xlstm_mlstm;

typedef struct xlstm_mlstm_forward {
  xlstm_mlstm in;
  xlstm_tensor h;                 /* (B, NH, S, DHHV) in q's dtype */
  void* l;                        /* (B, NH, S) the normaliser before abs and max, for backward; may be NULL */
  void *c_last, *n_last, *m_last; /* all or none; only the recurrent call may update the initial states in place */
} xlstm_mlstm_forward;

typedef struct xlstm_mlstm_backward {
  xlstm_mlstm in;
  xlstm_tensor h, dh;
  const void* l;
  const void *dc_last, *dn_last, *dm_last; /* all or none */
  xlstm_tensor dq, dk, dv, di, df;
  void *dc_initial, *dn_initial, *dm_initial; /* all or none; need the initial states */
} xlstm_mlstm_backward;

/* The threads and the memory of a call. parallel runs body(arg, w) for different w < workers, for at least one w,
 * concurrently or one after the other, and returns when all are done. If parallel is NULL the call starts threads.
 * threads <= 0: as many as the machine has.
 *
 * A call works in the caller's workspace, of at least the bytes that the call's *_workspace() returns. Without a
 * workspace it calls allocate(self, bytes) at most once; that block must live until the call returns, or until the work
 * that the call puts on a GPU's stream is done. With allocate, *_workspace() need not be called, so checks and the plan
 * are computed once. */
typedef struct xlstm_runtime {
  void* workspace;
  size_t workspace_bytes;
  int32_t threads;
  void (*parallel)(void* self, int32_t workers, void (*body)(void* arg, int32_t worker), void* arg);
  void* self; /* the first argument of parallel and allocate */
  void* (*allocate)(void* self, size_t bytes);
} xlstm_runtime;

/* The bytes of workspace for a call; 0 and a message when the parameters are invalid. */
XLSTM_API size_t xlstm_mlstm_chunkwise_workspace(const xlstm_mlstm_forward*, int32_t threads);
XLSTM_API size_t xlstm_mlstm_recurrent_workspace(const xlstm_mlstm_forward*, int32_t threads);
XLSTM_API size_t xlstm_mlstm_backward_workspace(const xlstm_mlstm_backward*, int32_t threads);

XLSTM_API xlstm_status xlstm_mlstm_chunkwise(const xlstm_mlstm_forward*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_mlstm_recurrent(const xlstm_mlstm_forward*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_mlstm_backward_pass(const xlstm_mlstm_backward*, const xlstm_runtime*);

/* The mLSTM calls on a GPU. Tensors, states, cu_seqlens and workspace lie in the memory of the current device. The work
 * is put on `stream` (a hipStream_t or cudaStream_t) and the call does not wait, so it may be captured in a graph. The
 * host does not read cu_seqlens: kernels clamp offsets that do not rise or that exceed the row. q is float, bfloat16 or
 * float16. */
typedef struct xlstm_gpu {
  void* stream;
  void* workspace; /* as in xlstm_runtime */
  size_t workspace_bytes;
  void* self;
  void* (*allocate)(void* self, size_t bytes);
} xlstm_gpu;

XLSTM_API size_t xlstm_gpu_mlstm_chunkwise_workspace(const xlstm_mlstm_forward*);
XLSTM_API size_t xlstm_gpu_mlstm_recurrent_workspace(const xlstm_mlstm_forward*);
XLSTM_API size_t xlstm_gpu_mlstm_backward_workspace(const xlstm_mlstm_backward*);

XLSTM_API xlstm_status xlstm_gpu_mlstm_chunkwise(const xlstm_mlstm_forward*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_mlstm_recurrent(const xlstm_mlstm_forward*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_mlstm_backward_pass(const xlstm_mlstm_backward*, const xlstm_gpu*);

/* ---- sLSTM, and LSTM
 *
 * Recurrent cells whose gates read the previous hidden state through a matrix for each head (csrc/slstm/recurrence.h
 * has the maths). Gates are in the order i, f, z, o. With U units of a head, P = xlstm_slstm_padded(U) is U rounded up
 * to a multiple of 32: matrices lie padded, with zeros in the rows and columns beyond U. */
typedef enum xlstm_cell {
  XLSTM_CELL_SLSTM = 0,            /* f = sigmoid, i = exp, stabilised */
  XLSTM_CELL_SLSTM_EXP_FORGET = 1, /* f = exp */
  XLSTM_CELL_LSTM = 2              /* no n and m */
} xlstm_cell;

/* The inputs of every call. States before the first token are zero where `h_initial` is NULL. A unit whose n_initial
 * is zero has no past: its c_initial and m_initial are not read. */
typedef struct xlstm_slstm {
  int64_t batch, heads, length, units;
  const int64_t* cu_seqlens; /* sequences + 1 offsets, or NULL: every batch row is a sequence */
  int64_t sequences;         /* N with cu_seqlens, else ignored */
  xlstm_cell cell;
  xlstm_dtype dtype; /* of matrices, gates and hidden states */
  const void*
      recurrent; /* forward (NH, 4, P, P): unit of a gate, previous unit; backward (NH, P, 4, P): its transpose */
  /* (N, NH, U) h in dtype, the others in the wide dtype; LSTM has no n and m. All of the cell's or none; backward reads
   * c and n alone. */
  const void *h_initial, *c_initial, *n_initial, *m_initial;
} xlstm_slstm;

typedef struct xlstm_slstm_forward {
  xlstm_slstm in;
  const void* x;                           /* (B, S, 4, NH, U) without the recurrent part */
  int64_t x_stride[4];                     /* of all axes but the last, which is contiguous */
  const void* bias;                        /* (4, NH, U) in the wide dtype, or NULL */
  void* h;                                 /* (B, S, NH, U) in dtype */
  void* gates;                             /* (B, S, 3, NH, U) in dtype, for backward; NULL: not wanted */
  void* memory;                            /* (B, S, 3, NH, U) in the wide dtype, with `gates` */
  void* m;                                 /* (B, S, NH, U) the stabilisers, in the wide dtype; NULL: not wanted */
  void *h_last, *c_last, *n_last, *m_last; /* as the initial states, which they may be; all of the cell's or none */
} xlstm_slstm_forward;

typedef struct xlstm_slstm_backward {
  xlstm_slstm in;
  const void *gates, *memory;              /* as forward left them */
  const void* dh;                          /* (B, S, NH, U) in dtype */
  const void *dc, *dn, *dm;                /* (B, S, NH, U) of the states of each token, in the wide dtype; or NULL */
  const void *dc_last, *dn_last, *dm_last; /* (N, NH, U) in the wide dtype, or NULL */
  void* dx;                                /* (B, S, 4, NH, U) in dtype */
  void* dbias; /* (N, 4, NH, U) in the wide dtype, whose sum over N is the bias's gradient; or NULL */
  void *dh_initial, *dc_initial, *dn_initial, *dm_initial; /* (N, NH, U) in the wide dtype; all of the cell's or none */
} xlstm_slstm_backward;

XLSTM_API int64_t xlstm_slstm_padded(int64_t units);

XLSTM_API size_t xlstm_slstm_forward_workspace(const xlstm_slstm_forward*, int32_t threads);
XLSTM_API size_t xlstm_slstm_backward_workspace(const xlstm_slstm_backward*, int32_t threads);
XLSTM_API xlstm_status xlstm_slstm_forward_pass(const xlstm_slstm_forward*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_slstm_backward_pass(const xlstm_slstm_backward*, const xlstm_runtime*);

/* On a GPU U is at most 512 and a multiple of 8, as are the strides of x; all tensors begin
 * at a multiple of 16 bytes. */
XLSTM_API size_t xlstm_gpu_slstm_forward_workspace(const xlstm_slstm_forward*);
XLSTM_API size_t xlstm_gpu_slstm_backward_workspace(const xlstm_slstm_backward*);
XLSTM_API xlstm_status xlstm_gpu_slstm_forward_pass(const xlstm_slstm_forward*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_slstm_backward_pass(const xlstm_slstm_backward*, const xlstm_gpu*);

/* ---- attention
 *
 * B sequences, HQ query heads, HK key heads (HQ a multiple of HK: query head h reads key head h / (HQ / HK)), head dims
 * DQK and DV. Tensors have strides of sequence, head and token, and contiguous features. A sequence is a row of the
 * batch; with cu_seqlens, it is the tokens [cu_seqlens[b], cu_seqlens[b + 1]) of one row; with block_table (a paged KV
 * cache), it is the pages that its row of the table lists, and a tensor's first stride is that of pages. The keys of
 * sequence b have indices [leftpad_k[b], seqused_k[b]), by default all. For query i and key j (both from 0, in the
 * sequence) of Q queries and K keys:
 *
 *   y_ij = softcap tanh(scale q_i.k_j / softcap) - slope |i + K - Q - j|     where -left <= j - (i + K - Q) <= right
 *   out_i = sum_j keep_ij e^(y_ij - lse_i) v_j / (1 - p)                     lse_i = log(e^sink + sum_j e^y_ij)
 *
 * A negative window side is unbounded, and causal is right = 0. softcap 0 and absent slopes, sinks and dropout omit
 * their terms. A row without keys and sink has out = 0 and lse = +infinity. keep_ij is Philox 4x32-10 of the seed, the
 * offset, (b, head), i and j alone: csrc/attention/rules.h. */
/* What a float of 8 bits in the keys, or in the values, of a sequence's key head stands for: itself times
 * data[sequence * stride[0] + head * stride[1]]. data NULL: itself. */
typedef struct xlstm_descale {
  const float* data;
  int64_t stride[2];
} xlstm_descale;

typedef struct xlstm_attention {
  int64_t batch, heads_q, heads_k, dqk, dv;
  int64_t length_q, length_k;     /* of a batch row; with cu_seqlens the longest; with block_table the table's keys */
  const int32_t* cu_seqlens_q;    /* batch + 1 offsets, or NULL */
  const int32_t* cu_seqlens_k;    /* batch + 1 offsets, or NULL */
  int64_t total_q, total_k;       /* with cu_seqlens: the tokens of the tensors */
  const int32_t* seqused_k;       /* (batch), or NULL */
  const int32_t* leftpad_k;       /* (batch), or NULL */
  const int32_t* cache_batch_idx; /* (batch): the row of k and v that each sequence reads, or NULL */
  int64_t cache_batch;            /* with cache_batch_idx: the rows of k and v */
  const int32_t* block_table;     /* (batch, pages of a sequence), or NULL */
  int64_t block_table_stride;
  int64_t page_size, pages; /* tokens of a page; pages of k and v */
  xlstm_tensor q, k, v;     /* k and v: of q's dtype, or both of one of the floats of 8 bits; q: of these where a GPU
                               multiplies them, for MLA */
  double softmax_scale, softcap, dropout_p;
  int64_t window_left, window_right; /* < 0: unbounded */
  const float* alibi_slopes;         /* (heads_q), or (batch, heads_q) with that stride; NULL */
  int64_t alibi_stride;
  const void* sink;                   /* (heads_q), wide; NULL */
  const int64_t* rng_state;           /* seed, offset; NULL without dropout */
  int64_t block_size;                 /* keys of a tile: 32, 64, 128 or 256; 0 lets the plan choose */
  xlstm_descale k_descale, v_descale; /* of k and v in floats of 8 bits, which have no backward pass */
} xlstm_attention;

typedef struct xlstm_attention_forward {
  xlstm_attention in;
  xlstm_tensor out;      /* like q with DV features, in q's dtype, or in bfloat16 where that has 8 bits */
  xlstm_tensor lse;      /* strides of sequence, head and token; wide */
  int32_t lse_with_sink; /* whether lse counts the sink */
  xlstm_tensor probs;    /* (B, HQ, length_q, length_k) in q's dtype with contiguous keys, zeroed by the caller: the
                            softmax, negative where dropout drops it. data NULL: not wanted */
  int64_t splits;        /* split-KV: the parts of a sequence's keys; 0 lets the plan choose */
} xlstm_attention_forward;

typedef struct xlstm_attention_backward {
  xlstm_attention in; /* no block_table, no cache_batch_idx */
  xlstm_tensor out, dout, lse;
  xlstm_tensor dlse; /* gradient of lse, or data NULL */
  xlstm_tensor dq, dk, dv;
  void* dsink; /* (heads_q), wide, or NULL */
  /* Tuning parameters: 0 lets the plan choose. On a GPU the tiles are fixed, and in.block_size must be 0. */
  int64_t row_panels;      /* CPU: register tiles of rows that are taken at once, up to 8 */
  int64_t parts;           /* the parts of a key head's rows, each with its sums of dk and dv */
  int64_t common_schedule; /* GPU: 1 for the kernels of every chip, where Hopper's or CDNA's own would run */
  int32_t deterministic;   /* 1: the same bits on every run; 0: dq may be added by atomics, in any order */
} xlstm_attention_backward;

/* The steps before attention with a KV cache: rotary embedding of q, and appending new values and rotated keys to the
 * cache. Token t of sequence b has position start[b] + t. The rotated pairs are features (2 j, 2 j + 1) when
 * interleaved, else (j, j + dim / 2). */
typedef struct xlstm_attention_append {
  int64_t batch, length; /* of the new tokens */
  xlstm_tensor from, to; /* to may be a cache: by block_table or cache_batch_idx */
  int64_t heads, features;
  const int32_t* start;  /* (batch), or NULL: 0 */
  int32_t to_cache;      /* whether token t is written at index start[b] + t, or at t */
  int32_t same_position; /* every token is rotated as the first is */
  const int32_t* cache_batch_idx;
  int64_t cache_batch, cache_length;
  const int32_t* block_table;
  int64_t block_table_stride, page_size, pages;
  const void *cos, *sin; /* (rotary_length, rotary_dim / 2) contiguous, in from's dtype; NULL: no rotation */
  int64_t rotary_length, rotary_dim;
  int32_t interleaved;
  xlstm_descale descale; /* of `to` in floats of 8 bits: x is stored as the nearest float to x / descale. What exceeds
                            the largest float becomes it; an infinity becomes a NaN */
} xlstm_attention_append;

/* out = sum of e^(lse_s - lse) out_s over parts s, lse = log sum e^lse_s. A part without keys has lse -+infinity. */
typedef struct xlstm_attention_combine {
  int64_t splits, batch, length, heads, dv;
  const void* out_partial; /* wide, (splits, batch, length, heads, dv) with these strides, dv contiguous */
  int64_t out_stride[4];
  const void* lse_partial; /* wide, (splits, batch, length, heads) with these strides */
  int64_t lse_stride[4];
  xlstm_dtype wide;      /* of the parts and lse: float, or double */
  xlstm_tensor out, lse; /* strides of batch, head and token */
} xlstm_attention_combine;

XLSTM_API size_t xlstm_attention_forward_workspace(const xlstm_attention_forward*, int32_t threads);
XLSTM_API size_t xlstm_attention_backward_workspace(const xlstm_attention_backward*, int32_t threads);
XLSTM_API size_t xlstm_attention_append_workspace(const xlstm_attention_append*, int32_t threads);
XLSTM_API size_t xlstm_attention_combine_workspace(const xlstm_attention_combine*, int32_t threads);

XLSTM_API xlstm_status xlstm_attention_forward_pass(const xlstm_attention_forward*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_attention_backward_pass(const xlstm_attention_backward*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_attention_append_tokens(const xlstm_attention_append*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_attention_combine_parts(const xlstm_attention_combine*, const xlstm_runtime*);

/* The attention calls on a GPU, as for the mLSTM: tensors and index tensors lie in the device's memory, which the host
 * does not read. Kernels clamp offsets, pages and lengths that exceed a tensor. q is float, bfloat16 or float16. */
XLSTM_API size_t xlstm_gpu_attention_forward_workspace(const xlstm_attention_forward*);
XLSTM_API size_t xlstm_gpu_attention_backward_workspace(const xlstm_attention_backward*);
XLSTM_API size_t xlstm_gpu_attention_append_workspace(const xlstm_attention_append*);
XLSTM_API size_t xlstm_gpu_attention_combine_workspace(const xlstm_attention_combine*);

XLSTM_API xlstm_status xlstm_gpu_attention_forward_pass(const xlstm_attention_forward*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_attention_backward_pass(const xlstm_attention_backward*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_attention_append_tokens(const xlstm_attention_append*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_attention_combine_parts(const xlstm_attention_combine*, const xlstm_gpu*);

/* ---- the layers around the mLSTM
 *
 * A tensor is rows of contiguous features; stride is from row to row, in elements. "->" rounds to a dtype: mixed dtypes
 * promote as in torch, and each product is rounded as in torch. Sums are wide. Gradients treat roundings as the
 * identity, and have the dtypes of their tensors. */
typedef struct xlstm_rows {
  void* data;
  xlstm_dtype dtype;
  int64_t stride;
} xlstm_rows;

/* x' = x + residual, also written to sum; then for each head of x':
 *   n = x' / sqrt(mean x'^2 + eps), or centred (x' - mean) / sqrt(var + eps) -> x's dtype
 *   z = n weight -> , + bias -> ;    y = sigmoid(gate) -> z ->  */
typedef struct xlstm_norm {
  int64_t rows, heads, features; /* features of a head: a row has heads * features */
  double eps;
  int32_t centred;
  xlstm_rows x;
  xlstm_rows residual;     /* data NULL: none. With a residual, sum is an output */
  xlstm_rows weight, bias; /* one row of heads * features; data NULL: none */
  xlstm_rows gate;         /* data NULL: none */
} xlstm_norm;

typedef struct xlstm_norm_forward {
  xlstm_norm in;
  xlstm_rows sum; /* x' */
  xlstm_rows y;   /* of the promoted dtype; where that is float32, also bfloat16 or float16; dy alike */
} xlstm_norm_forward;

typedef struct xlstm_norm_backward {
  xlstm_norm in; /* without residual: x is x' */
  xlstm_rows dy;
  xlstm_rows dsum; /* the gradient of x' from its other uses, or data NULL */
  xlstm_rows dx;
  xlstm_rows dgate;          /* with gate */
  xlstm_rows dweight, dbias; /* data NULL: not wanted */
} xlstm_norm_backward;

/* y = cap tanh(x / cap) */
typedef struct xlstm_soft_cap {
  int64_t rows, features;
  double cap;
  xlstm_rows x;
  xlstm_rows y;      /* forward */
  xlstm_rows dy, dx; /* backward */
} xlstm_soft_cap;

/* y = gate sigmoid(gate) up */
typedef struct xlstm_swiglu {
  int64_t rows, features;
  xlstm_rows gate, up;
  xlstm_rows y;              /* forward */
  xlstm_rows dy, dgate, dup; /* backward */
} xlstm_swiglu;

/* loss = log sum_c e^(y_c) - y_target with y = cap tanh(logits / cap); 0 where target is ignore_index.
 * Backward: dlogits = dloss dloss/dlogits, which may overwrite logits. */
typedef struct xlstm_cross_entropy {
  int64_t rows, classes;
  double cap; /* 0: none */
  int64_t ignore_index;
  xlstm_rows logits;
  const void* targets;   /* (rows) */
  int32_t targets_bytes; /* 8: int64; 1: uint8 */
  void* loss;            /* (rows), wide */
  void* exps;            /* (rows, 2), wide: max y and sum e^(y - max y); backward reads them */
  const void* dloss;     /* wide, rows dloss_stride apart */
  int64_t dloss_stride;
  xlstm_rows dlogits;
} xlstm_cross_entropy;

XLSTM_API size_t xlstm_norm_backward_workspace(const xlstm_norm_backward*, int32_t threads);

XLSTM_API xlstm_status xlstm_norm_forward_pass(const xlstm_norm_forward*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_norm_backward_pass(const xlstm_norm_backward*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_soft_cap_forward_pass(const xlstm_soft_cap*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_soft_cap_backward_pass(const xlstm_soft_cap*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_swiglu_forward_pass(const xlstm_swiglu*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_swiglu_backward_pass(const xlstm_swiglu*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_cross_entropy_forward_pass(const xlstm_cross_entropy*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_cross_entropy_backward_pass(const xlstm_cross_entropy*, const xlstm_runtime*);

/* The layer calls on a GPU. Dtypes are float, bfloat16 and float16. A target out of range has a loss of NaN, where the
 * CPU call returns an error. */
XLSTM_API size_t xlstm_gpu_norm_backward_workspace(const xlstm_norm_backward*);

XLSTM_API xlstm_status xlstm_gpu_norm_forward_pass(const xlstm_norm_forward*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_norm_backward_pass(const xlstm_norm_backward*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_soft_cap_forward_pass(const xlstm_soft_cap*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_soft_cap_backward_pass(const xlstm_soft_cap*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_swiglu_forward_pass(const xlstm_swiglu*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_swiglu_backward_pass(const xlstm_swiglu*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_cross_entropy_forward_pass(const xlstm_cross_entropy*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_cross_entropy_backward_pass(const xlstm_cross_entropy*, const xlstm_gpu*);

/* ---- the decode engine: one token through an xLSTM
 *
 * Each of B rows reads one token, through blocks of norm, mLSTM, norm, feed-forward, then norm and head:
 *
 *   y = norm(x)       q, k, v, o, i, f = W y       i, f = cap tanh(. / cap)
 *   h = the mLSTM's step, which updates the states in place
 *   x += W_out (sigmoid(o) head_norm(h))
 *   x += W_down (silu(W_gate y) W_up y) with y = norm(x)
 *   out = cap tanh(W_head norm(x) / cap), or norm(x) without a head
 *
 * Everything but the weights is float, and a row's result does not depend on the other rows. */

/* Contiguous features, or data NULL: absent. */
typedef struct xlstm_vector {
  const void* data;
  xlstm_dtype dtype;
} xlstm_vector;

/* What a weight of 8 bits is in memory: a signed integer, or a float of 4 exponent and 3 mantissa bits. E4M3FN (OCP)
 * has exponent bias 7, largest value 448 and NaN 0x7f and 0xff; E4M3FNUZ has bias 8, largest value 240, NaN 0x80 and no
 * -0. */
typedef enum xlstm_code {
  XLSTM_CODE_INTEGER = 0,
  XLSTM_CODE_E4M3FN = 1,
  XLSTM_CODE_E4M3FNUZ = 2,
  XLSTM_CODE_INT = -2147483647 - 1 /* any int may be stored, and is checked */
} xlstm_code;

/* A weight (rows, columns): each row computes one output feature from `columns` input features.
 * bits 0: values of `dtype`. bits 8 or 4 (quantised): row r, column c is scale[r][g] q + offset[r][g], g = c /
 * group_size, where q is a byte of `code` or a nibble from 0 to 15; without offsets a byte of 0 or a nibble of 8 is
 * zero. Floats have no offsets. Every 32 consecutive nibbles are packed into 16 bytes: columns 0 to 15 are the low
 * halves, columns 16 to 31 the high halves. A row of q is padded to full groups. */
typedef struct xlstm_linear {
  int64_t rows, columns;
  int32_t bits;
  xlstm_code code;     /* of 8 bits; otherwise XLSTM_CODE_INTEGER */
  int64_t group_size;  /* with bits: 32, 64 or 128 */
  xlstm_dtype dtype;   /* of the values, or of scales and offsets */
  const void* data;    /* NULL: absent, for a head */
  const void* scales;  /* (rows, groups) */
  const void* offsets; /* (rows, groups), or NULL */
  xlstm_vector bias;   /* (rows) */
} xlstm_linear;

typedef struct xlstm_decode_norm {
  xlstm_vector weight, bias;
} xlstm_decode_norm;

typedef struct xlstm_decode_block {
  xlstm_decode_norm norm_mlstm, head_norm, norm_ffn;
  xlstm_linear q, k, v, o, i, f, out, gate, up, down;
  float *c, *n, *m; /* (B, NH, DHQK, DHHV), (B, NH, DHQK), (B, NH): read and overwritten */
} xlstm_decode_block;

/* Half of a block, or the head, of a model that is divided over devices: each has some of the heads, the features of
 * the feed-forward and the vocabulary, and sums of `out` over devices are the caller's. */
typedef enum xlstm_decode_part {
  XLSTM_DECODE_ALL = 0,
  XLSTM_DECODE_MLSTM = 1, /* out (B, dim) += the mLSTM layer of the norm of x */
  XLSTM_DECODE_FFN = 2,   /* out (B, dim) += the feed-forward of the norm of x */
  XLSTM_DECODE_HEAD = 3   /* out = the head of the norm of x */
} xlstm_decode_part;

typedef struct xlstm_decode {
  int64_t batch, dim, heads, dqk, dhv, ffn, vocab, blocks;
  const int64_t* tokens;  /* (B); not read by a part */
  const uint8_t* keep;    /* (B) 0 for a row whose states do not change, or NULL */
  xlstm_vector embedding; /* (vocab, dim) */
  const xlstm_decode_block* block;
  xlstm_decode_norm out_norm; /* weight.data NULL: none */
  xlstm_linear head;
  xlstm_gate gate;             /* of the mLSTM */
  int32_t normalize;           /* as in xlstm_mlstm */
  double norm_eps, eps;        /* of the norms, and of the mLSTM */
  double gate_cap, output_cap; /* 0: none */
  float* out;                  /* (B, head.rows), or (B, dim) without a head */
  xlstm_decode_part part;      /* of a model of one block */
  const float* x;              /* (B, dim) of a part, which may be `out`; NULL for all */
} xlstm_decode;

XLSTM_API size_t xlstm_decode_workspace(const xlstm_decode*, int32_t threads);
XLSTM_API xlstm_status xlstm_decode_step(const xlstm_decode*, const xlstm_runtime*);

/* The decode calls on a GPU. Everything but the structs themselves lies in the memory of the current device. A row
 * whose token is not in the vocabulary results in NaN: the host does not read tokens, so it cannot refuse them. */
XLSTM_API size_t xlstm_gpu_decode_workspace(const xlstm_decode*);
XLSTM_API xlstm_status xlstm_gpu_decode_step(const xlstm_decode*, const xlstm_gpu*);

/* ---- a quantised linear layer for few rows: y = x W^T + bias
 *
 * Weights are multiplied as they lie in memory and not rounded; x and y have one dtype, in which y is rounded once.
 * On a CPU they are float, bfloat16 or float16. On a GPU they are bfloat16, and `takes` is 1 where the current device
 * has a kernel for this layer, its format and alignment, and this many rows: Hopper, for up to 256 rows and groups of
 * 64 or 128. Where it is 0 the call is an error. */
typedef struct xlstm_linear_forward {
  int64_t rows;
  xlstm_linear weight; /* bits 8 or 4 */
  xlstm_rows x;        /* rows of weight.columns */
  xlstm_rows y;        /* rows of weight.rows */
} xlstm_linear_forward;

XLSTM_API size_t xlstm_linear_forward_workspace(const xlstm_linear_forward*, int32_t threads);
XLSTM_API xlstm_status xlstm_linear_forward_pass(const xlstm_linear_forward*, const xlstm_runtime*);

XLSTM_API int32_t xlstm_gpu_linear_forward_takes(const xlstm_linear_forward*);
XLSTM_API size_t xlstm_gpu_linear_forward_workspace(const xlstm_linear_forward*);
XLSTM_API xlstm_status xlstm_gpu_linear_forward_pass(const xlstm_linear_forward*, const xlstm_gpu*);

/* ---- sampling the next token
 *
 * Samples a token from each row's logits, by the rules of csrc/engine/sampling/sampling.h: the same token on every
 * device and in any batch. A row that holds NaN, or in which no token can be sampled, results in -1. The call reads and
 * writes all its state (numbers, seen, going, tokens) in memory, so that a captured call can be replayed. */
typedef struct xlstm_draw {
  int64_t batch, vocab;      /* at most 2^22 */
  const float* logits;       /* (B, V) */
  double temperature;        /* 0: greedy, the most likely token; of equals the first */
  int64_t top_k;             /* 0: all */
  double top_p;              /* 1: all */
  double repetition_penalty; /* of seen tokens: positive logits are divided by it, others multiplied; 1: none */
  const int64_t* seeds;      /* (B), or NULL at temperature 0 */
  int64_t* numbers;          /* (B) the number of this draw, from 0, which the call increments; NULL at temperature 0 */
  int64_t* weights;          /* (B, V) the integer sampling weight of each token; NULL: not wanted, or temperature 0 */
  uint8_t* seen;             /* (B, V) with a penalty, else NULL */
  uint8_t* going;      /* (B) 0: the row has ended and gets `pad`; a token of `ends` sets it to 0. NULL: no row ends */
  const int64_t* ends; /* (ends_count), at most 64, with going */
  int64_t ends_count;
  int64_t pad;
  int64_t* tokens; /* (B) in: the last token read, which a penalty counts as seen (-1: none); out: the sampled token */
} xlstm_draw;

XLSTM_API xlstm_status xlstm_draw_tokens(const xlstm_draw*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_gpu_draw_tokens(const xlstm_draw*, const xlstm_gpu*);

/* The message of this thread's last call, empty when it succeeded. */
XLSTM_API const char* xlstm_last_error(void);
/* The instruction set that the CPU kernels use: "amx", "avx512bf16", "avx512", "avx2" or "portable". */
XLSTM_API const char* xlstm_cpu_isa(void);

#ifdef __cplusplus
}
#endif
#endif
