// SPDX-License-Identifier: Apache-2.0
// The launches of write_records_kernel, once for all formats of weights.
#include "arch/launch.h"
#include "engine/megakernel_cdna/write_records.h"

namespace xlstm::gpu::engine {

template <class Record>
void launch_write_records(const RecordsParams<Record>& params, int count, Stream stream) {
  launch("decode params", write_records_kernel<Record>, {count, kWave, 0}, stream, params);
}

template void launch_write_records(const RecordsParams<GemmParams>&, int, Stream);
template void launch_write_records(const RecordsParams<HeadsStepParams>&, int, Stream);

}  // namespace xlstm::gpu::engine
