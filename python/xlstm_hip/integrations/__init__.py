# SPDX-License-Identifier: Apache-2.0
"""This package inside other libraries. hf: transformers' xLSTM models, as xlstm_hip.hf."""
