# SPDX-License-Identifier: Apache-2.0
"""xlstm_hip.compat: code written for mlstm_kernels runs on ours. Each case in a process of its own."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap

import pytest

CASES = {
    "getters and backend": """
        import torch
        from mlstm_kernels.torch import get_available_mlstm_kernels, get_mlstm_kernel
        from mlstm_kernels.torch import get_mlstm_sequence_kernel, get_mlstm_step_kernel
        from mlstm_kernels.torch.backend_module import mLSTMBackend, mLSTMBackendConfig
        import xlstm_hip.mlstm.backend, xlstm_hip.mlstm.registry
        assert issubclass(mLSTMBackend, xlstm_hip.mlstm.backend.mLSTMBackend)
        assert mLSTMBackendConfig is xlstm_hip.mlstm.backend.mLSTMBackendConfig
        ours = xlstm_hip.mlstm.registry.get_mlstm_kernel
        assert get_mlstm_kernel("chunkwise--fused") is ours("chunkwise--fused")
        # In mlstm_kernels' order of arguments, which is not ours.
        assert get_mlstm_kernel("chunkwise--native_custbw").stands_for is ours("chunkwise--native_custbw")
        assert "chunkwise--fused" in get_available_mlstm_kernels()
        x = torch.randn(1, 2, 40, 8)
        h, states = mLSTMBackend(mLSTMBackendConfig(mode="inference"))(x, x, x, x[..., 0], x[..., 1])
        sequence = get_mlstm_sequence_kernel("native_sequence__native")
        torch.testing.assert_close(h, sequence(x, x, x, x[..., 0], x[..., 1]))
        assert callable(get_mlstm_step_kernel("triton"))
    """,
    "what xlstm's large model imports": """
        from mlstm_kernels.torch.backend_module import (
            BackendModeType, ChunkwiseKernelType, DtypeType, SequenceKernelType, StepKernelType,
            mLSTMBackend, mLSTMBackendConfig,
        )
        import dataclasses
        @dataclasses.dataclass
        class Config:
            chunkwise_kernel: ChunkwiseKernelType = "chunkwise--fused"
            sequence_kernel: SequenceKernelType = "fused"
            step_kernel: StepKernelType = "fused"
            mode: BackendModeType = "inference"
            autocast_kernel_dtype: DtypeType = "bfloat16"
        mLSTMBackend(mLSTMBackendConfig(**dataclasses.asdict(Config())))
    """,
    "wrappers": """
        from mlstm_kernels.torch import kernel_wrappers
        import xlstm_hip.mlstm.wrappers as ours
        for name in ("pad_zeros", "arbitrary_sequence_length", "arbitrary_sequence_length_with_padding"):
            name = "wrap_chunkwise__" + name
            assert getattr(kernel_wrappers, name) is getattr(ours, name)
    """,
    "a kernel put into a dict": """
        import torch
        from mlstm_kernels.torch import get_mlstm_kernel, get_mlstm_step_kernel
        from mlstm_kernels.torch.backend_module import mLSTMBackend, mLSTMBackendConfig
        import mlstm_kernels.torch.chunkwise, mlstm_kernels.torch.parallel
        from mlstm_kernels.torch.chunkwise import registry
        from mlstm_kernels.torch.recurrent import registry_sequence, registry_step
        import xlstm_hip.mlstm.registry as ours
        lengths = []
        def mine(q, k, v, i, f, c_initial=None, n_initial=None, m_initial=None, chunk_size=64, **call):
            lengths.append(q.shape[2])
            return get_mlstm_kernel("chunkwise--native_custbw")(
                q, k, v, i, f, c_initial, n_initial, m_initial, chunk_size=chunk_size, **call)
        registry["mine"] = mine
        assert get_mlstm_kernel("chunkwise--mine") is mine and registry["mine"] is mine
        info = ours.kernel_info("chunkwise--mine")
        assert (info.gradient, info.any_length) == ("unstated", False)
        config = mLSTMBackendConfig(chunkwise_kernel="chunkwise--mine", mode="inference", chunk_size=16)
        x = torch.randn(1, 2, 40, 8)
        h, _ = mLSTMBackend(config)(x, x, x, x[..., 0], x[..., 1])
        assert lengths == [32] and h.shape == x.shape
        registry_step["native"] = mine
        assert get_mlstm_step_kernel("native") is mine
        assert registry_step.pop("native") is mine and registry_step["native"] is not mine
        registry_sequence.update(other=mine)
        assert "other" in registry_sequence and "native_sequence__native" in list(registry_sequence)
        del registry["mine"]
        assert "mine" not in registry and len(registry) == len(list(registry))
        assert "native_siging_custbw" in mlstm_kernels.torch.parallel.registry
        for bad in (lambda: registry["mine"], lambda: registry.pop("mine")):
            try:
                bad()
            except KeyError:
                continue
            raise SystemExit("a missing name must be a KeyError")
        try:
            del registry["native_autograd"]
        except ValueError as e:
            assert "is built in and stays" in str(e)
    """,
    "xlstm.xlstm_large": """
        import tempfile
        import torch
        from xlstm.xlstm_large.model import xLSTMLargeConfig, xLSTMLarge
        from xlstm.xlstm_large.from_pretrained import load_from_pretrained
        from xlstm.xlstm_large.utils import convert_single_weights_to_fused_weights
        import xlstm.xlstm_large, xlstm_hip.models
        assert xLSTMLarge is xlstm_hip.models.xLSTMLarge is xlstm.xlstm_large.xLSTMLarge
        from xlstm.xlstm_large.generate import generate_tokens
        assert generate_tokens.__module__ == "xlstm_hip.compat.generate"
        import importlib.metadata, importlib.util
        try:
            from xlstm import xLSTMBlockStack
            assert not xLSTMBlockStack.__module__.startswith("xlstm_hip") and importlib.metadata.version("xlstm")
        except ImportError as error:
            assert "sLSTM is not offered yet" in str(error)
            assert not importlib.util.find_spec("xlstm").origin
        fields = dict(embedding_dim=32, num_heads=4, num_blocks=12, vocab_size=50, ffn_proj_factor=1.0)
        released = dict(chunkwise_kernel="chunkwise--triton_limit_chunk", step_kernel="triton",
                        sequence_kernel="native_sequence__triton")
        model = xLSTMLarge(xLSTMLargeConfig(**fields, **released, mode="inference", return_last_states=True))
        x = torch.randint(0, 50, (1, 16))
        with torch.no_grad():
            logits, state = model(x)
            tokens, state = model.generate(prefill_tokens=x, max_length=5, sampling_type="greedy", state=None)
            assert tokens.shape == (1, 5)
            fused = xLSTMLarge(xLSTMLargeConfig(**fields, weight_mode="fused"))
            names = dict(sorted(model.state_dict().items()))
            fused.load_state_dict(convert_single_weights_to_fused_weights(names))
            torch.testing.assert_close(fused(x), logits, atol=1e-5, rtol=1e-5)
            with tempfile.TemporaryDirectory() as folder:
                xlstm_hip.models.save_pretrained(model, folder, "xlstm_large")
                again = load_from_pretrained(folder, return_last_states=False, chunk_size=32)
            torch.testing.assert_close(again(x), logits, atol=1e-5, rtol=1e-5)
            assert again.config.chunk_size == 32
    """,
    "transformers takes its blocks from it": """
        import importlib.util
        if importlib.util.find_spec("transformers") is None:
            raise SystemExit(0)
        import torch
        from transformers import xLSTMConfig, xLSTMForCausalLM
        from transformers.models.xlstm import modeling_xlstm
        import xlstm_hip.models.blocks
        assert issubclass(modeling_xlstm.xLSTMBlock, xlstm_hip.models.blocks.mLSTMBlock)
        config = xLSTMConfig(hidden_size=128, num_heads=4, num_hidden_layers=2, vocab_size=50, ffn_proj_factor=1.0)
        x = torch.randint(3, 50, (1, 16))
        model = xLSTMForCausalLM(config).eval()
        want = model.generate(x, max_new_tokens=6, do_sample=False)
        from xlstm_hip import hf
        assert torch.equal(hf.accelerate(model).generate(x, max_new_tokens=6, do_sample=False), want)
    """,
    "function modules": """
        import importlib
        import mlstm_kernels
        assert mlstm_kernels.__version__ == "2.0.6"
        for line in '''
            chunkwise mlstm_chunkwise__native_autograd mlstm_chunkwise__native_custbw
            chunkwise mlstm_chunkwise__limit_chunk mlstm_chunkwise__xl_chunk
            chunkwise mlstm_siging_chunkwise__xl_chunk
            chunkwise.native mlstm_chunkwise__native_autograd mlstm_chunkwise__native_custbw
            chunkwise.triton_limit_chunk mlstm_chunkwise__limit_chunk
            chunkwise.triton_xl_chunk mlstm_chunkwise__xl_chunk
            chunkwise.triton_xl_chunk_siging mlstm_siging_chunkwise__xl_chunk
            chunkwise.triton_xl_chunk_siging.fwbw mlstm_siging_chunkwise__xl_chunk
            parallel mlstm_parallel__native_autograd mlstm_siging_parallel__native_custbw
            parallel.native mlstm_parallel__native_autograd mlstm_parallel__native_custbw
            parallel.native_stablef mlstm_parallel__native_stablef_autograd
            parallel.native_stablef mlstm_parallel__native_stablef_custbw
            parallel.native_siging mlstm_siging_parallel__native_autograd
            parallel.native_siging mlstm_siging_parallel__native_custbw
            parallel.triton_limit_headdim mlstm_parallel__limit_headdim
            recurrent mlstm_recurrent_sequence__native_fw mlstm_recurrent_step__native
            recurrent.native_sequence mlstm_recurrent_sequence__native_fw
            recurrent.native_step mlstm_recurrent_step__native
            recurrent.triton_step mlstm_recurrent_step__triton mlstm_recurrent_step__triton_fw
            recurrent.triton_step_alternate mlstm_recurrent_step__triton_alternate
            backend_module get_mlstm_kernel get_mlstm_sequence_kernel get_mlstm_step_kernel wrap_chunkwise__pad_zeros
            utils contiguous dtype2str to_numpy
        '''.strip().splitlines():
            module, *names = line.split()
            module = importlib.import_module("mlstm_kernels.torch." + module)
            assert all(callable(getattr(module, name)) for name in names), line
    """,
    "mlstm_kernels.mlstm": """
        import torch
        from mlstm_kernels.mlstm import get_mlstm_kernel, mLSTMBackend, mLSTMBackendConfig
        from mlstm_kernels.mlstm import mlstm_interface, mlstm_step_interface
        x = torch.randn(1, 2, 40, 8)
        h, (c, n, m) = mlstm_interface(x, x, x, x[..., 0], x[..., 1], return_last_states=True)
        last = x[:, :, -1]
        h, _ = mlstm_step_interface(last, last, last, last[..., :1], last[..., 1:2], c, n, m)
        assert h.shape == last.shape
    """,
    "what is not offered": """
        import importlib.util
        for name in ("mlstm_kernels.triton", "mlstm_kernels.jax", "mlstm_kernels.utils", "mlstm_kernels.baselines"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as e:
                assert f"No module named '{name}'" in str(e)
            else:
                raise SystemExit(f"{name} came from somewhere")
        assert importlib.util.find_spec("mlstm_kernels") is not None
    """,
    "the triton names are the fused kernels": """
        import torch, logging
        from mlstm_kernels.torch.chunkwise.triton_xl_chunk import mlstm_chunkwise__xl_chunk
        from xlstm_hip.mlstm import kernels, triton_peers
        torch.cuda.is_available = lambda: True
        assert not triton_peers.peers_usable()
        x = torch.randn(1, 2, 40, 8)
        assert mlstm_chunkwise__xl_chunk(x, x, x, x[..., 0], x[..., 1]).equal(
            kernels.mlstm_chunkwise_fused(x, x, x, x[..., 0], x[..., 1]))
    """,
}


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("case", CASES)
def test_code_for_mlstm_kernels(case: str) -> None:
    done = run("import xlstm_hip.compat\n" + textwrap.dedent(CASES[case]))
    assert done.returncode == 0, done.stderr


def test_importing_it_again_is_nothing_new() -> None:
    done = run("""
        import sys
        import xlstm_hip.compat
        del sys.modules["xlstm_hip.compat"]
        import xlstm_hip.compat
        import mlstm_kernels.torch
    """)
    assert done.returncode == 0, done.stderr


def test_a_real_one_imported_before_is_an_error() -> None:
    real = "import mlstm_kernels.torch" if importlib.util.find_spec("mlstm_kernels") else (
        "import sys, types; sys.modules['mlstm_kernels'] = types.ModuleType('mlstm_kernels')"
    )  # fmt: skip
    done = run(real + "\nimport xlstm_hip.compat")
    assert done.returncode != 0
    assert "ImportError: xlstm_hip.compat: the real mlstm_kernels is imported already" in done.stderr


def test_ours_goes_before_an_installed_one() -> None:
    done = run("""
        import xlstm_hip.compat
        import mlstm_kernels
        assert mlstm_kernels.__xlstm_hip__
    """)
    assert done.returncode == 0, done.stderr
