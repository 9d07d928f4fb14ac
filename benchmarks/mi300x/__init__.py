# SPDX-License-Identifier: Apache-2.0
"""Microbenchmarks that give the constants of an MI300X; ../mi300x_constants.py runs them."""
