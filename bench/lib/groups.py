"""Sizes of compressed pages in a file that a guest swapped onto, by the libraries of lz4 and LZO of this host."""

import ctypes
import random

from lib.figures import PAGE, shares

LIBRARIES = {"lz4": "liblz4.so.1", "lzo1x": "liblzo2.so.2"}
# Of LZO1X-1 (lzo1x.h): 64 KiB.
LZO_WORK_BYTES = 65536
SAMPLE = 8192


def lz4(library):
    out = ctypes.create_string_buffer(2 * PAGE)
    return lambda page: library.LZ4_compress_default(page, out, PAGE, 2 * PAGE)


def lzo(library):
    out, work = ctypes.create_string_buffer(2 * PAGE), ctypes.create_string_buffer(LZO_WORK_BYTES)
    length = ctypes.c_size_t()

    def size(page):
        library.lzo1x_1_compress(page, ctypes.c_size_t(PAGE), out, ctypes.byref(length), work)
        return length.value
    return size


MAKERS = {"lz4": lz4, "lzo1x": lzo}


def pages(path, seed=1):
    """Some of the pages of a file that are not of one byte: those that were never written are zeros."""
    found = []
    with open(path, "rb") as f:
        # The first has the header of the swap area.
        f.seek(PAGE)
        while page := f.read(PAGE):
            if len(page) == PAGE and page != page[:1] * PAGE:
                found.append(page)
    return random.Random(seed).sample(found, min(SAMPLE, len(found)))


def measure(path):
    """Shares by group for each library that is here."""
    sample = pages(path)
    result = {"pages": len(sample)}
    for name, file in LIBRARIES.items():
        try:
            size = MAKERS[name](ctypes.CDLL(file))
        except OSError:
            result[name] = {"missing": f"there is no {file}"}
            continue
        result[name] = shares([min(PAGE, size(page)) for page in sample])
    return result
