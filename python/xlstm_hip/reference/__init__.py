# SPDX-License-Identifier: Apache-2.0
"""The mLSTM in plain torch: any device, any float dtype, any length. Other kernels are measured by these."""

from .chunkwise import (
    mlstm_chunkwise__native_autograd,
    mlstm_chunkwise__native_custbw,
    mlstm_siging_chunkwise__native_autograd,
    mlstm_siging_chunkwise__native_custbw,
)
from .parallel import (
    mlstm_parallel__native_autograd,
    mlstm_parallel__native_custbw,
    mlstm_parallel__native_stablef_autograd,
    mlstm_parallel__native_stablef_custbw,
    mlstm_siging_parallel__native_autograd,
    mlstm_siging_parallel__native_custbw,
)
from .recurrent import (
    mlstm_recurrent_sequence__native_fw,
    mlstm_recurrent_step__native,
    mlstm_siging_recurrent_sequence__native_fw,
    mlstm_siging_recurrent_step__native,
)

__all__ = [
    "mlstm_chunkwise__native_autograd",
    "mlstm_chunkwise__native_custbw",
    "mlstm_parallel__native_autograd",
    "mlstm_parallel__native_custbw",
    "mlstm_parallel__native_stablef_autograd",
    "mlstm_parallel__native_stablef_custbw",
    "mlstm_recurrent_sequence__native_fw",
    "mlstm_recurrent_step__native",
    "mlstm_siging_chunkwise__native_autograd",
    "mlstm_siging_chunkwise__native_custbw",
    "mlstm_siging_parallel__native_autograd",
    "mlstm_siging_parallel__native_custbw",
    "mlstm_siging_recurrent_sequence__native_fw",
    "mlstm_siging_recurrent_step__native",
]


def __dir__() -> list[str]:
    return __all__
