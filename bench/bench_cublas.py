"""cuBLAS beside our linears of BF16 weights: how long its products of the same shapes take, where each sum
has one part; ours have the order that the class bf16-t25 lays down."""

import contextlib
import ctypes
import random
import time

from bench_machine import Failure

BF16, COMPUTE_F32, DEFAULT = 14, 68, -1  # cudaDataType, cublasComputeType_t, cublasGemmAlgo_t
TRANSPOSED, PLAIN = 1, 0  # cublasOperation_t
TO_DEVICE = 1  # cudaMemcpyKind
COPIES = 4  # of the weights, so that none is still in a cache when its turn comes
PATTERN = 1 << 20  # bytes
FOLDERS = ("", "/usr/local/cuda/lib64/")


def library(name):
    for path in (f"{folder}lib{name}.so.{major}" for major in (13, 12) for folder in FOLDERS):
        with contextlib.suppress(OSError):
            return ctypes.CDLL(path)
    raise Failure(f"lib{name}.so is missing: it comes with CUDA's toolkit")


def checked(what, status):
    if status != 0:
        raise Failure(f"{what} failed ({status})")


def numbers():
    """bf16 from 0.5 to 1, of both signs."""
    def repeated(bits):
        return int.from_bytes(bits.to_bytes(2, "little") * (PATTERN // 2), "little")

    bits = int.from_bytes(random.Random(1).randbytes(PATTERN), "little")
    return (bits & repeated(0x807f) | repeated(0x3f00)).to_bytes(PATTERN, "little")


class Cublas:
    """On one GPU, by its number."""

    def __init__(self, number):
        self.cuda, self.blas, self.handle = library("cudart"), library("cublas"), ctypes.c_void_p()
        checked("cudaSetDevice", self.cuda.cudaSetDevice(number))
        checked("cublasCreate", self.blas.cublasCreate_v2(ctypes.byref(self.handle)))
        self.pattern = numbers()

    def take(self, count):
        """An array of so many numbers, the same each time."""
        size, at = 2 * count, ctypes.c_void_p()
        checked("cudaMalloc", self.cuda.cudaMalloc(ctypes.byref(at), ctypes.c_size_t(size)))
        for i in range(0, size, PATTERN):
            to, part = ctypes.c_void_p(at.value + i), ctypes.c_size_t(min(PATTERN, size - i))
            checked("cudaMemcpy", self.cuda.cudaMemcpy(to, self.pattern, part, TO_DEVICE))
        return at

    def multiply(self, outputs, inputs, rows, weights, x, y):
        one, zero = ctypes.c_float(1), ctypes.c_float(0)
        checked("cublasGemmEx", self.blas.cublasGemmEx(
            self.handle, TRANSPOSED, PLAIN, outputs, rows, inputs, ctypes.byref(one), weights, BF16, inputs,
            x, BF16, inputs, ctypes.byref(zero), y, BF16, outputs, COMPUTE_F32, DEFAULT))

    def wait(self):
        checked("cudaDeviceSynchronize", self.cuda.cudaDeviceSynchronize())

    def linears(self, shapes, layers, rows, repetitions=5):
        """The least us of `layers` layers that have these linears, (outputs, inputs)."""
        weights = [[self.take(o * i) for o, i in shapes] for _ in range(COPIES)]
        x, y = (self.take(rows * max(s[k] for s in shapes)) for k in (1, 0))
        best = float("inf")
        for _ in range(1 + repetitions):
            self.wait()
            begin = time.perf_counter()
            for layer in range(layers):
                for (outputs, inputs), w in zip(shapes, weights[layer % COPIES]):
                    self.multiply(outputs, inputs, rows, w, x, y)
            self.wait()
            best = min(best, 1e6 * (time.perf_counter() - begin))
        for array in (x, y, *sum(weights, [])):
            checked("cudaFree", self.cuda.cudaFree(array))
        return best
