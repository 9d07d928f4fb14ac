# SPDX-License-Identifier: Apache-2.0
"""The sLSTM and the LSTM with heads: recurrent cells whose gates read the previous hidden state."""

from .flashrnn import flashrnn
from .interface import slstm_interface, slstm_step_interface

__all__ = ["flashrnn", "slstm_interface", "slstm_step_interface"]


def __dir__() -> list[str]:
    return __all__
