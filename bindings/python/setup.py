"""The package `canvas`: one extension, with the small library of canvas.h in it."""

import setuptools

setuptools.setup(
    packages=[],
    ext_modules=[setuptools.Extension("canvas", ["canvas-python.c", "canvas-api.c"], include_dirs=["."],
                                      libraries=["dl"])])
