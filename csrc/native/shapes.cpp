// SPDX-License-Identifier: Apache-2.0
// The shapes of GPU kernels on each family, which tests compare with code objects and plans.
#include "native/shapes.h"

#include <pybind11/stl.h>

#include <stdexcept>
#include <string>

#include "attention/backward/backward_shape.h"
#include "attention/mla/mla_plan.h"
#include "engine/gemm_cdna/gemm_cdna_shape.h"
#include "mlstm/chunkwise/chunkwise_plan.h"
#include "mlstm/chunkwise/parallel_shape.h"

namespace py = pybind11;
using namespace xlstm;
using py::literals::operator""_a;

namespace {

gpu::Family family_of(const std::string& name) {
  if (name == "cdna") return gpu::Family::cdna;
  if (name == "rdna") return gpu::Family::rdna;
  if (name == "rdna4") return gpu::Family::rdna4;
  if (name == "nvidia") return gpu::Family::nvidia;
  throw std::invalid_argument("family: expected cdna, rdna, rdna4 or nvidia, got " + name);
}

// The shapes of attention's kernels: attend<element, dqk, dv, ...> (and write_weights<element, dqk, dv>),
// decode<element, dqk, dv, ...>, mla<element, rows, features, ahead>, attention_gradients<element, dqk, dv, ...,
// of_keys>. None where the family has no such kernel. keys, tile: tokens of a tile of the mainloop. blocks: the blocks
// per multiprocessor that plans and launch bounds assume.
py::dict attend_shape(const std::string& family, int element_bytes, int dqk, int dv, bool has_score_mod) {
  const gpu::attention::ForwardShape s =
      gpu::attention::forward_shape(family_of(family), element_bytes, {dqk, dv}, has_score_mod);
  return py::dict("rows"_a = s.rows, "keys"_a = s.keys, "blocks"_a = s.blocks, "lds_bytes"_a = s.lds_bytes);
}
py::object decode_shape(const std::string& family, int element_bytes, int dqk, int dv) {
  const gpu::Family f = family_of(family);
  if (!gpu::attention::has_decode(f, element_bytes, {dqk, dv})) return py::none();
  const gpu::attention::DecodeShape s = gpu::attention::decode_shape(f, element_bytes, {dqk, dv});
  return py::dict("rows"_a = gpu::attention::kDecodeRows, "keys"_a = gpu::strip_step(f, element_bytes),
                  "blocks"_a = s.blocks, "lds_bytes"_a = s.lds_bytes);
}
py::object mla_shape(const std::string& family, int rows, int features, bool ahead, int element_bytes) {
  const gpu::Family f = family_of(family);
  if (!gpu::attention::has_mla(f, rows, ahead)) return py::none();
  const gpu::attention::MlaShape s = gpu::attention::mla_shape(f, rows, features, ahead, element_bytes);
  return py::dict("rows"_a = rows, "keys"_a = s.keys, "values"_a = gpu::attention::kMlaValues, "blocks"_a = 1,
                  "lds_bytes"_a = s.lds_bytes);
}
py::dict attention_gradients_shape(const std::string& family, int element_bytes, int dqk, int dv, bool of_keys) {
  const auto shape = of_keys ? gpu::attention::key_gradients_shape : gpu::attention::query_gradients_shape;
  const gpu::attention::BackwardShape s = shape(family_of(family), element_bytes, dqk, dv);
  return py::dict("owned"_a = s.owned, "waves_across"_a = s.waves_across, "tile"_a = s.tile, "blocks"_a = s.blocks,
                  "lds_bytes"_a = s.lds_bytes);
}

// A block of attention's backward kernel with dq added by atomics; None where the family has none.
py::object one_pass_shape(const std::string& family, int features) {
  if (family_of(family) != gpu::Family::cdna) return py::none();
  const gpu::attention::BackwardShape s = gpu::attention::one_pass_shape(gpu::Family::cdna, features);
  return py::dict("owned"_a = s.owned, "tile"_a = s.tile, "blocks"_a = s.blocks, "lds_bytes"_a = s.lds_bytes);
}

// LDS of gemm_mma_kernel<weights, batch, rows> for rows of `columns` columns; None where the family has no such kernel.
py::object gemm_mma_lds_bytes(const std::string& family, int bits, int batch, int rows, int columns) {
  const gpu::Family f = family_of(family);
  if (!gpu::engine::has_gemm_mma(f, batch) || !gpu::engine::has_gemm_mma_rows(batch, rows)) return py::none();
  return py::int_(gpu::engine::gemm_mma_lds_bytes(f, bits, batch, rows, columns, gpu::engine::kMinLds[int(f)]));
}

// LDS of gemm_batch_kernel for rows of `columns` columns; None where the family has none.
py::object batch_lds_bytes(const std::string& family, int columns) {
  if (family_of(family) != gpu::Family::cdna) return py::none();
  return py::int_(gpu::engine::batch_lds_bytes(gpu::Family::cdna, columns));
}

// The LDS of gemm_cdna_kernel for a unit of `rows` rows and `steps` steps, and the steps of its loop's body; None where
// the family has none.
py::object cdna_gemm_shape(const std::string& family, int bits, bool integers, int batch, int rows, int steps) {
  using namespace gpu::engine;
  if (family_of(family) != gpu::Family::cdna) return py::none();
  const int lds_bytes = gemm_cdna_lds_bytes(has_digits(bits, integers), bits < 16, batch, rows, steps, false);
  return py::dict("lds_bytes"_a = lds_bytes, "body_steps"_a = body_steps(bits, batch));
}

// The shape of chunk_walk<element, rows, chunk>; None where the family has no such kernel.
py::object walk_shape(const std::string& family, int element_bytes, int rows, int chunk) {
  const gpu::Family f = family_of(family);
  if (!gpu::mlstm::has_walk(f, element_bytes, rows, chunk)) return py::none();
  const gpu::mlstm::WalkShape s = gpu::mlstm::walk_shape(f, element_bytes, rows, chunk);
  return py::dict("threads"_a = s.threads, "y_tile"_a = s.y_tile, "blocks"_a = s.blocks, "lds_bytes"_a = s.lds_bytes);
}

int scores_lds_bytes(const std::string& family, int element_bytes, int chunk, bool backward) {
  return gpu::mlstm::scores_lds_bytes(family_of(family), element_bytes, chunk, backward);
}

}  // namespace

void add_shapes(py::module_& m) {
  m.def("walk_shape", walk_shape, "family"_a, "element_bytes"_a, "rows"_a, "chunk"_a,
        "A block of the walk kernel: threads, columns of the state, blocks of a multiprocessor, LDS; None where the "
        "family (cdna, rdna, rdna4, nvidia) has no such kernel.");
  m.def("attend_shape", attend_shape, "family"_a, "element_bytes"_a, "dqk"_a, "dv"_a, "has_score_mod"_a,
        "A block of attention's forward kernel: rows, keys of a tile, blocks of a multiprocessor, LDS.");
  m.def("decode_shape", decode_shape, "family"_a, "element_bytes"_a, "dqk"_a, "dv"_a,
        "A block of the decode kernel: rows, keys of a tile, blocks of a multiprocessor, LDS; None where the family "
        "has no such kernel.");
  m.attr("MLA_CDNA_ROWS") = gpu::attention::kMlaCdnaRows;
  m.def("mla_shape", mla_shape, "family"_a, "rows"_a, "features"_a, "ahead"_a, "element_bytes"_a = 2,
        "A block of the MLA kernel: rows, keys of a tile, values, blocks of a multiprocessor, LDS; None where the "
        "family has no such kernel.");
  m.def("batch_lds_bytes", batch_lds_bytes, "family"_a, "columns"_a);
  m.def("cdna_gemm_shape", cdna_gemm_shape, "family"_a, "bits"_a, "integers"_a, "batch"_a, "rows"_a, "steps"_a);
  m.def("matrix_lds_bytes", gemm_mma_lds_bytes, "family"_a, "bits"_a, "batch"_a, "rows"_a, "columns"_a,
        "The LDS of a launch of a decode step's product; None where the family has no such kernel.");
  m.def("attention_gradients_shape", attention_gradients_shape, "family"_a, "element_bytes"_a, "dqk"_a, "dv"_a,
        "of_keys"_a,
        "A block of attention's backward kernel, for dk and dv or for dq: tokens owned, waves across the features of "
        "its sums, tokens of a tile, blocks of a multiprocessor, LDS.");
  m.def("one_pass_shape", one_pass_shape, "family"_a, "features"_a,
        "A block of attention's backward kernel that adds dq by atomics: tokens owned, tokens of a tile, blocks of a "
        "multiprocessor, LDS. None where the family has no such kernel.");
  m.def("scores_lds_bytes", scores_lds_bytes, "family"_a, "element_bytes"_a, "chunk"_a, "backward"_a,
        "LDS of a block of the score kernel.");
  m.def("parallel_scores_lds_bytes", gpu::mlstm::parallel_score_lds_bytes, "backward"_a,
        "LDS of a block of the parallel schedule's score kernel.");
  m.attr("PARALLEL_PRODUCTS_LDS_BYTES") = gpu::mlstm::kProductLds;
}
