# SPDX-License-Identifier: Apache-2.0
"""The stand-in for libamdhip64: what it refuses, what it gives kernels beside their arguments, memory and its ends."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import builds
from assembly import kernel_text

SOURCE = """
#include <hip/hip_runtime.h>
__device__ int offset = 5;
struct Three { int a; float b; short c; };
extern "C" {
__global__ void twice(float* x) { x[threadIdx.x] *= 2; }
__global__ void at(float* x, long i) { x[i] = 1; }
__global__ void shape(int* x) {
  if (threadIdx.x | threadIdx.y | threadIdx.z) return;
  int* to = x + 9 * (blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z));
  to[0] = gridDim.x, to[1] = gridDim.y, to[2] = gridDim.z, to[3] = blockDim.x, to[4] = blockDim.y, to[5] = blockDim.z;
  to[6] = blockIdx.x, to[7] = blockIdx.y, to[8] = blockIdx.z;
}
__global__ void sum(const int* x, int* to, int n) {
  extern __shared__ int shared[];
  shared[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  int s = 0;
  for (int i = 0; i < n; ++i) s += shared[i];
  to[threadIdx.x] = s;
}
__global__ void by_value(float* x, Three three, char tail) { x[0] = three.a + three.b + three.c + tail; }
__global__ void shifted(int* x) { x[threadIdx.x] = offset + threadIdx.x; }
__global__ void __launch_bounds__(128) bounded(float* x) { x[threadIdx.x] = 0; }
}
"""


@pytest.fixture(scope="module")
def module(device: ModuleType) -> Iterator[ModuleType]:
    with device.Module(builds.compile_hip(SOURCE)) as loaded:
        yield loaded


@pytest.mark.parametrize("length, offset", [(3, 0), (2, 1), (1, 3)])
def test_preloaded_arguments(device: ModuleType, length: int, offset: int) -> None:
    """They follow the other user registers, and the kernel begins behind the 256 bytes that would load them."""
    body = f"""  s_trap 2
  .fill 63, 4, 0xbf800000
  s_load_dwordx2 s[8:9], s[0:1], 0x10
  v_lshlrev_b32 v1, 2, v0
  v_mov_b32 v2, s2
  v_mov_b32 v3, s{1 + length}
  v_mov_b32 v4, s{2 + length}
  s_waitcnt lgkmcnt(0)
  global_store_dwordx3 v1, v[2:4], s[8:9]"""
    text = kernel_text(body, [4, 4, 4, 4, "*"], threads=64)
    preload = f"""  .amdhsa_user_sgpr_count {2 + length}
  .amdhsa_user_sgpr_kernarg_preload_length {length}
  .amdhsa_user_sgpr_kernarg_preload_offset {offset}"""
    assert "  .amdhsa_user_sgpr_count 2" in text
    found = np.zeros(66, np.uint32)
    with device.Module(device.assemble(text.replace("  .amdhsa_user_sgpr_count 2", preload))) as loaded:
        loaded.launch("kernel", (1, 1, 1), 1, (10, 11, 12, 13, found))
    assert found[:3].tolist() == [10 + offset, 10 + offset + length - 1, 0]  # then the workgroup's place


class Allocation:
    """hipMalloc's memory, as an array."""

    def __init__(self, device: ModuleType, count: int, dtype: type[np.generic]) -> None:
        self.device, self.pointer = device, ctypes.c_void_p()
        size = count * np.dtype(dtype).itemsize
        device.hip("hipMalloc", ctypes.byref(self.pointer), ctypes.c_size_t(size))
        assert self.pointer.value
        self.address: int = self.pointer.value
        self.values = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address)).view(dtype)

    def free(self) -> None:
        self.device.hip("hipFree", self.pointer)


def test_arrays_go_in_and_out(module) -> None:
    x = np.arange(64, dtype=np.float32)
    module.launch("twice", 1, 64, (x,))
    np.testing.assert_array_equal(x, 2 * np.arange(64))


def test_a_kernel_knows_its_grid(module) -> None:
    x = np.zeros((2, 3, 4, 9), np.int32)
    module.launch("shape", (4, 3, 2), (16, 4, 2), (x,))
    for z, y, x_ in np.ndindex(2, 3, 4):
        np.testing.assert_array_equal(x[z, y, x_], [4, 3, 2, 16, 4, 2, x_, y, z])


def test_dynamic_lds(module, device) -> None:
    x, to = np.arange(100, dtype=np.int32), np.zeros(100, np.int32)
    module.launch("sum", 1, 100, (x, to, 100), lds=400)
    assert set(to) == {4950}
    with pytest.raises(device.Fault, match="outside"):
        module.launch("sum", 1, 100, (x, to, 100), lds=396)


def test_arguments_by_value(module) -> None:
    x = np.zeros(1, np.float32)
    three = np.array([(100, 0.5, 7)], np.dtype([("a", "i4"), ("b", "f4"), ("c", "i2")], align=True))
    module.launch("by_value", 1, 1, (x, three[0].tobytes(), -3))
    assert x[0] == 104.5
    with pytest.raises(TypeError, match="expected an argument of 12 bytes, got 4"):
        module.launch("by_value", 1, 1, (x, np.int32(3), 0))
    with pytest.raises(TypeError, match="expected 3 arguments, got 1"):
        module.launch("by_value", 1, 1, (x,))


@pytest.mark.parametrize(
    ("name", "grid", "block", "lds", "text"),
    [
        ("twice", 1, 1025, 0, "1025 x 1 x 1 threads; 1024 is the most"),
        ("twice", 1, (64, 32, 1), 0, "2048 threads; the kernel was compiled for 1024 at most"),
        ("bounded", 1, 129, 0, "129 threads; the kernel was compiled for 128 at most"),
        ("twice", 0, 64, 0, "is empty"),
        ("twice", 1, 64, 65537, r"0 \+ 65537 bytes of LDS; 65536 are the most"),
        ("twice", 1 << 27, 64, 0, "2\\^32 threads or more"),
    ],
)
def test_limits(module, device, name, grid, block, lds, text) -> None:
    with pytest.raises(device.HipError, match=text) as caught:
        module.launch(name, grid, block, (np.zeros(64, np.float32),), lds)
    assert not isinstance(caught.value, device.Fault)


def test_memory_ends_where_it_ends(module, device) -> None:
    first, second = (Allocation(device, 65, np.float32) for _ in range(2))
    assert np.isnan(first.values).all()  # what nobody wrote
    module.launch("at", 1, 1, (first.address, 64))
    assert first.values[64] == 1 and np.isnan(first.values[:64]).all()
    for index in (65, 66, 100, -1):
        with pytest.raises(device.Fault, match="at: .*outside"):
            module.launch("at", 1, 1, (first.address, index))
    first.free()
    with pytest.raises(device.Fault, match="outside"):
        module.launch("at", 1, 1, (first.address, 0))
    with pytest.raises(device.HipError, match="no allocation begins there"):
        first.free()
    second.free()


def test_an_array_ends_where_it_ends(module, device) -> None:
    x = np.zeros(64, np.float32)
    with pytest.raises(device.Fault, match="outside"):
        module.launch("at", 1, 1, (x[:32], 32))
    module.launch("sum", 1, 32, (np.arange(32, dtype=np.int32), x[32:].view(np.int32), 32), lds=128)
    assert not x[:32].any() and set(x[32:].view(np.int32)) == {496}


def test_copies_stay_inside(device) -> None:
    allocation, host_array = Allocation(device, 16, np.float32), np.arange(17, dtype=np.float32)
    to_device, to_host = 1, 2
    copy = ctypes.c_void_p(host_array.ctypes.data)
    device.hip("hipMemcpy", allocation.pointer, copy, ctypes.c_size_t(64), to_device)
    np.testing.assert_array_equal(allocation.values, host_array[:16])
    for args in ((allocation.pointer, copy, to_device), (copy, allocation.pointer, to_host)):
        with pytest.raises(device.HipError, match="68 bytes that do not lie in one allocation"):
            device.hip("hipMemcpy", *args[:2], ctypes.c_size_t(68), args[2])
    device.hip("hipMemset", allocation.pointer, 0, ctypes.c_size_t(64))
    assert not allocation.values.any()
    allocation.free()


def test_the_device_has_its_memory(device) -> None:
    def left() -> int:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        device.hip("hipMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        assert total.value == 192 << 30
        return free.value

    before, x = left(), Allocation(device, 1000, np.int8)
    assert left() == before - 1000
    x.free()
    assert left() == before
    with pytest.raises(device.HipError, match="the device has .* left"):
        device.hip("hipMalloc", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t((192 << 30) + 1))


def test_it_is_an_mi300x(device) -> None:
    facts = device.properties()
    assert facts["name"] == "AMD Instinct MI300X" and facts["arch"] == "gfx942:sramecc+:xnack-"
    assert (facts["compute_units"], facts["wave_size"], facts["lds_bytes"]) == (304, 64, 65536)
    with pytest.raises(device.HipError, match="there is one device"):
        device.hip("hipSetDevice", 1)


def test_events_tell_no_time(device) -> None:
    stream, event, time = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_float()
    device.hip("hipStreamCreate", ctypes.byref(stream))
    device.hip("hipEventCreate", ctypes.byref(event))
    device.hip("hipEventRecord", event, stream)
    device.hip("hipEventSynchronize", event)
    with pytest.raises(device.HipError, match="no clock"):
        device.hip("hipEventElapsedTime", ctypes.byref(time), event, event)
    device.hip("hipStreamDestroy", stream)
    with pytest.raises(device.HipError, match="no such stream"):
        device.hip("hipStreamSynchronize", stream)
    device.hip("hipEventDestroy", event)


def test_code_that_cannot_run_here(device) -> None:
    code = bytearray(builds.compile_hip(SOURCE))
    code[48] = 0x41  # of the ELF header's flags: gfx1100
    with pytest.raises(device.HipError, match="expected one for gfx90a, gfx942 or gfx950"):
        device.Module(bytes(code))
    with pytest.raises(device.HipError, match="expected a code object or an offload bundle"):
        device.Module(b"\0" * 64)
    with pytest.raises(device.HipError, match="no kernel thrice"):
        device.Module(builds.compile_hip(SOURCE)).launch("thrice", 1, 1)


def test_an_unknown_instruction_is_named(device) -> None:
    with (
        device.Module(builds.assemble(kernel_text("  s_sleep 1\n  ds_gws_sema_v gds"))) as loaded,
        pytest.raises(device.Fault, match=r"kernel: .*not implement.*\n.*ds_gws_sema_v gds"),
    ):
        loaded.launch("kernel", 1, 64)


def test_what_cannot_be_described_is_an_error(device) -> None:
    with pytest.raises(device.HipError, match="gfx942_kernel_json: .*function is null"):
        device.described("gfx942_kernel_json", None)


def test_counters(module, device) -> None:
    device.reset_counters()
    x = np.zeros(100, np.float32)
    for _ in range(3):
        module.launch("twice", 2, 100, (x,))
    (counted,) = device.counters()
    assert counted.kernel.name == "twice" and not counted.kernel.vgpr_spills
    assert (counted.launches, counted.workgroups, counted.waves) == (3, 6, 12)
    assert [(s.grid, s.block, s.launches) for s in counted.shapes] == [((2, 1, 1), (100, 1, 1), 3)]
    (store,) = (i for i in counted.instructions if i.mnemonic.startswith("global_store"))
    assert (store.executed, store.lanes, store.bytes) == (12, 600, 2400)
    assert counted.instructions[-1].mnemonic == "s_endpgm" and counted.instructions[-1].executed == 12
    device.set_sample(2)
    module.launch("twice", 8, 100, (x,))
    device.set_sample(1)
    (counted,) = device.counters()
    assert counted.workgroups == 6 + 4
    device.reset_counters()
    assert not device.counters()


HOST = """
#include <hip/hip_runtime.h>
__device__ int offset = 5;
__global__ void shifted(int* x) { x[threadIdx.x] = offset + int(threadIdx.x) + int(blockDim.x); }
#define TRY(call) if (hipError_t e = call; e != hipSuccess) return hipGetErrorString(e)
extern "C" __attribute__((visibility("default"))) const char* run(int value, int* to) {
  int before = 0, *x;
  hipStream_t stream;
  TRY(hipStreamCreate(&stream));
  TRY(hipMemcpyFromSymbol(&before, HIP_SYMBOL(offset), 4));
  if (before != 5) return "the variable does not have its value";
  TRY(hipMemcpyToSymbol(HIP_SYMBOL(offset), &value, 4));
  TRY(hipMalloc(&x, 64 * 4));
  shifted<<<1, 64, 0, stream>>>(x);
  TRY(hipGetLastError());
  TRY(hipMemcpyAsync(to, x, 64 * 4, hipMemcpyDeviceToHost, stream));
  TRY(hipFree(x));
  TRY(hipStreamDestroy(stream));
  shifted<<<1, 64>>>(x);
  return hipGetErrorString(hipGetLastError());
}
"""


def test_a_program_of_host_and_device(device, tmp_path: Path) -> None:
    """As a user compiles one: registration by the compiler, <<<>>>, symbols, and a fault's text as HIP's error."""
    source, library = tmp_path / "host.hip", tmp_path / "host.so"
    source.write_text(HOST)
    c = builds.compiler()
    folder = builds.interpreter().parent
    links = (f"-L{folder}", "-lamdhip64", f"-Wl,-rpath,{folder}")
    options = ("-x", "hip", "--offload-arch=gfx942", *c.flags, "-O3", "-shared", "-fPIC")
    builds.run(c.path, *options, source, "-o", library, *links)
    run = ctypes.CDLL(str(library)).run
    run.restype = ctypes.c_char_p
    to = (ctypes.c_int * 64)()
    text = run(100, to).decode()
    assert list(to) == [164 + i for i in range(64)], text
    assert "shifted" in text and "outside" in text
