# SPDX-License-Identifier: Apache-2.0
"""Support for other libraries. hf: transformers' xLSTM models; its public name is xlstm_hip.hf."""
