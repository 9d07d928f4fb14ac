/* SPDX-License-Identifier: Apache-2.0 */
/* The framework-free C API of xlstm_hip. Plain structs in, an error code out; nothing is allocated and nothing is kept.
 *
 * Shapes are B batch, NH heads, S tokens, DHQK and DHHV head dims. A packed call has B = 1 and cu_seqlens: N + 1 rising
 * token offsets from 0 to S; its states have N in the place of B. Absent tensors have data = NULL.
 * Working precision ("wide") is float, or double when q is double; states, l and gate-sized results of it are
 * contiguous. */
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
  XLSTM_DTYPE_INT = -2147483647 - 1 /* any int may be stored, and is checked */
} xlstm_dtype;

typedef enum xlstm_gate { XLSTM_GATE_EXP = 0, XLSTM_GATE_SIGMOID = 1, XLSTM_GATE_INT = -2147483647 - 1 } xlstm_gate;

/* q, k, v, h: (B, NH, S, D) with D contiguous; gates: (B, NH, S). Strides of B, NH, S count elements. */
typedef struct xlstm_tensor {
  void* data;
  xlstm_dtype dtype;
  int64_t stride[3];
} xlstm_tensor;

/* What every mLSTM call reads. */
typedef struct xlstm_mlstm {
  int64_t batch, heads, length, dqk, dhv;
  const int64_t* cu_seqlens; /* sequences + 1 offsets, or NULL: every batch row is a sequence */
  int64_t sequences;         /* N with cu_seqlens, else ignored */
  xlstm_gate gate;
  int32_t normalize;       /* sigmoid gate only: divide by max(|l|, 1) + eps */
  int32_t normalizer_grad; /* 1: exact gradients; 0: the normaliser is a constant in backward */
  double eps;
  int64_t chunk_size;
  xlstm_tensor q, k, v, i, f;
  const void *c_initial, *n_initial, *m_initial; /* (N, NH, DHQK, DHHV), (N, NH, DHQK), (N, NH); all or none */
} xlstm_mlstm;

typedef struct xlstm_mlstm_forward {
  xlstm_mlstm in;
  xlstm_tensor h;                 /* (B, NH, S, DHHV) in q's dtype */
  void* l;                        /* (B, NH, S) the normaliser before abs and max, for backward; may be NULL */
  void *c_last, *n_last, *m_last; /* all or none; the recurrent call alone may have the initial ones here: in place */
} xlstm_mlstm_forward;

typedef struct xlstm_mlstm_backward {
  xlstm_mlstm in;
  xlstm_tensor h, dh;
  const void* l;
  const void *dc_last, *dn_last, *dm_last; /* all or none */
  xlstm_tensor dq, dk, dv, di, df;
  void *dc_initial, *dn_initial, *dm_initial; /* all or none; need the initial states */
} xlstm_mlstm_backward;

/* Where a call runs. parallel runs body(arg, w) for different w < workers, at least one of them, at once or one after
 * the other, and returns when all are done; NULL starts threads of its own. threads <= 0: as many as the machine has.
 */
typedef struct xlstm_runtime {
  void* workspace;
  size_t workspace_bytes;
  int32_t threads;
  void (*parallel)(void* self, int32_t workers, void (*body)(void* arg, int32_t worker), void* arg);
  void* self;
} xlstm_runtime;

/* Bytes of workspace for a call; 0 and a message when the parameters are invalid. */
XLSTM_API size_t xlstm_mlstm_chunkwise_workspace(const xlstm_mlstm_forward*, int32_t threads);
XLSTM_API size_t xlstm_mlstm_recurrent_workspace(const xlstm_mlstm_forward*, int32_t threads);
XLSTM_API size_t xlstm_mlstm_backward_workspace(const xlstm_mlstm_backward*, int32_t threads);

XLSTM_API xlstm_status xlstm_mlstm_chunkwise(const xlstm_mlstm_forward*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_mlstm_recurrent(const xlstm_mlstm_forward*, const xlstm_runtime*);
XLSTM_API xlstm_status xlstm_mlstm_backward_pass(const xlstm_mlstm_backward*, const xlstm_runtime*);

/* The same calls on a GPU: tensors, states, cu_seqlens and workspace lie in the memory of the current device, and the
 * work is put on `stream` (a hipStream_t or cudaStream_t) without waiting for anything, so a call may be captured in a
 * graph. cu_seqlens is not read here: offsets that do not rise or leave the row are cut off. q is float, bfloat16 or
 * float16. DHQK and DHHV are at most 512 but for the recurrent call. */
typedef struct xlstm_gpu {
  void* stream;
  void* workspace;
  size_t workspace_bytes;
} xlstm_gpu;

XLSTM_API size_t xlstm_gpu_mlstm_chunkwise_workspace(const xlstm_mlstm_forward*);
XLSTM_API size_t xlstm_gpu_mlstm_recurrent_workspace(const xlstm_mlstm_forward*);
XLSTM_API size_t xlstm_gpu_mlstm_backward_workspace(const xlstm_mlstm_backward*);

XLSTM_API xlstm_status xlstm_gpu_mlstm_chunkwise(const xlstm_mlstm_forward*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_mlstm_recurrent(const xlstm_mlstm_forward*, const xlstm_gpu*);
XLSTM_API xlstm_status xlstm_gpu_mlstm_backward_pass(const xlstm_mlstm_backward*, const xlstm_gpu*);

/* The message of this thread's last call, empty when it succeeded. */
XLSTM_API const char* xlstm_last_error(void);
/* The instruction set that the CPU kernels use: "avx512bf16", "avx512", "avx2" or "portable". */
XLSTM_API const char* xlstm_cpu_isa(void);

#ifdef __cplusplus
}
#endif
#endif
