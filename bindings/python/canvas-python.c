/* canvas.h for Python. Without canvas all calls return None. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>

#include "canvas.h"

/* None without canvas; an OSError by its number; the number. */
static PyObject *answer(long n) {
    if (n == -ENOSYS)
        Py_RETURN_NONE;
    if (n < 0) {
        errno = (int)-n;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyLong_FromLong(n);
}

/* The part of a buffer that offset and length name; false with an exception. */
static int part(Py_buffer *view, Py_ssize_t offset, Py_ssize_t length, struct canvas_range *range) {
    if (offset < 0 || offset > view->len || length < -1 || (length >= 0 && length > view->len - offset)) {
        PyErr_SetString(PyExc_ValueError, "offset and length lie outside of the buffer");
        return 0;
    }
    range->addr = (const char *)view->buf + offset;
    range->len = (size_t)(length < 0 ? view->len - offset : length);
    return 1;
}

static PyObject *version(PyObject *self, PyObject *none) {
    (void)self, (void)none;
    return answer(canvas_version());
}

static PyObject *prefetch(PyObject *self, PyObject *args, PyObject *names) {
    static char *known[] = {"buffer", "offset", "length", NULL};
    (void)self;
    Py_buffer view;
    Py_ssize_t offset = 0, length = -1;
    if (!PyArg_ParseTupleAndKeywords(args, names, "y*|nn", known, &view, &offset, &length))
        return NULL;
    struct canvas_range range;
    PyObject *done = part(&view, offset, length, &range) ? answer(canvas_prefetch(range.addr, range.len)) : NULL;
    PyBuffer_Release(&view);
    return done;
}

static PyObject *prefetchv(PyObject *self, PyObject *list) {
    (void)self;
    PyObject *items = PySequence_Fast(list, "a sequence of (buffer, offset, length) is wanted");
    if (!items)
        return NULL;
    struct canvas_range ranges[CANVAS_RANGES_MAX];
    Py_buffer views[CANVAS_RANGES_MAX];
    Py_ssize_t n = PySequence_Fast_GET_SIZE(items), held = 0;
    int ok = n <= CANVAS_RANGES_MAX;
    if (!ok)
        PyErr_Format(PyExc_ValueError, "%zd ranges, %d at most", n, CANVAS_RANGES_MAX);
    while (ok && held < n) {
        Py_ssize_t offset, length;
        PyObject *item = PySequence_Fast_GET_ITEM(items, held);
        ok = PyTuple_Check(item) ? PyArg_ParseTuple(item, "y*nn", &views[held], &offset, &length) : 0;
        if (!ok && !PyErr_Occurred())
            PyErr_SetString(PyExc_TypeError, "a range is a tuple (buffer, offset, length)");
        if (ok)
            ok = part(&views[held], offset, length, &ranges[held]), held++;
    }
    PyObject *done = ok ? answer(canvas_prefetchv(ranges, (size_t)n)) : NULL;
    while (held > 0)
        PyBuffer_Release(&views[--held]);
    Py_DECREF(items);
    return done;
}

static PyObject *region(PyObject *self, PyObject *args, PyObject *names) {
    static char *known[] = {"buffer", "kind", "base", "shift", NULL};
    (void)self;
    Py_buffer view;
    int kind;
    unsigned long long base = 0;
    unsigned int shift = 0;
    if (!PyArg_ParseTupleAndKeywords(args, names, "y*i|KI", known, &view, &kind, &base, &shift))
        return NULL;
    PyObject *done = answer(canvas_region(view.buf, (size_t)view.len, kind, base, shift));
    PyBuffer_Release(&view);
    return done;
}

static PyObject *thread_kind(PyObject *self, PyObject *args, PyObject *names) {
    static char *known[] = {"kind", "tid", NULL};
    (void)self;
    int kind, tid = 0;
    if (!PyArg_ParseTupleAndKeywords(args, names, "i|i", known, &kind, &tid))
        return NULL;
    return answer(canvas_thread_kind(tid, kind));
}

static PyObject *faults_next(PyObject *self, PyObject *args, PyObject *names) {
    static char *known[] = {"n", "timeout_ms", NULL};
    (void)self;
    int n = 64, timeout_ms = 0;
    if (!PyArg_ParseTupleAndKeywords(args, names, "|ii", known, &n, &timeout_ms))
        return NULL;
    struct canvas_fault faults[256];
    if (n < 1 || n > 256) {
        PyErr_SetString(PyExc_ValueError, "n is 1 to 256");
        return NULL;
    }
    long got;
    Py_BEGIN_ALLOW_THREADS
    got = canvas_faults_next(faults, (size_t)n, timeout_ms);
    Py_END_ALLOW_THREADS
    if (got < 0)
        return answer(got);
    PyObject *list = PyList_New(got);
    for (long i = 0; list && i < got; i++) {
        const struct canvas_fault *f = &faults[i];
        PyObject *one = Py_BuildValue("(KKIIK)", (unsigned long long)f->address, (unsigned long long)f->ip, f->tid,
                                      f->kind, (unsigned long long)f->time_ns);
        if (!one) {
            Py_DECREF(list);
            return NULL;
        }
        PyList_SET_ITEM(list, i, one);
    }
    return list;
}

static PyObject *stats(PyObject *self, PyObject *none) {
    static const char *names[] = {"local_bytes", "local_limit_bytes", "pool_bytes", "resident_bytes", "far_bytes",
                                  "faults_far", "pages_in", "pages_out", "prefetch_issued", "prefetch_used",
                                  "hint_pages_in", "hint_pages_out", "hints_dropped", "faults_forwarded",
                                  "faults_dropped"};
    (void)self, (void)none;
    struct canvas_stats s;
    long written = canvas_stats(&s, sizeof s);
    if (written < 0)
        return answer(written);
    const uint64_t *fields = (const uint64_t *)&s;
    PyObject *all = PyDict_New();
    for (size_t i = 0; all && i < sizeof names / sizeof *names && i < (size_t)written / 8; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(fields[i]);
        if (!value || PyDict_SetItemString(all, names[i], value) < 0)
            Py_CLEAR(all);
        Py_XDECREF(value);
    }
    return all;
}

#define WITH_NAMES(f) (PyCFunction)(void (*)(void))f, METH_VARARGS | METH_KEYWORDS

static PyMethodDef METHODS[] = {
    {"version", version, METH_NOARGS, "The version of the canvas that manages this process; None without one."},
    {"prefetch", WITH_NAMES(prefetch), "prefetch(buffer, offset=0, length=-1): brings it in, soon; the pages queued."},
    {"prefetchv", prefetchv, METH_O, "prefetchv([(buffer, offset, length), ...]): brings in up to 64 buffers."},
    {"region", WITH_NAMES(region), "region(buffer, kind, base=0, shift=0): sets what the buffer contains."},
    {"thread_kind", WITH_NAMES(thread_kind), "thread_kind(kind, tid=0): sets what a thread is for."},
    {"faults_next", WITH_NAMES(faults_next),
     "faults_next(n=64, timeout_ms=0): the oldest faults, a list of (address, ip, tid, kind, time_ns)."},
    {"stats", stats, METH_NOARGS, "A dict of canvas's figures; None without canvas."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "canvas",
    .m_doc = "Hints from a program to canvas about its memory, and figures in return (docs/API.md). Without canvas "
             "all calls return None.",
    .m_size = 0,
    .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit_canvas(void) {
    PyObject *m = PyModule_Create(&MODULE);
    if (m && (PyModule_AddIntConstant(m, "REGION_NORMAL", CANVAS_REGION_NORMAL) < 0 ||
              PyModule_AddIntConstant(m, "REGION_ARRAY", CANVAS_REGION_ARRAY) < 0 ||
              PyModule_AddIntConstant(m, "REGION_REFS64", CANVAS_REGION_REFS64) < 0 ||
              PyModule_AddIntConstant(m, "REGION_REFS32", CANVAS_REGION_REFS32) < 0 ||
              PyModule_AddIntConstant(m, "REGION_RANDOM", CANVAS_REGION_RANDOM) < 0 ||
              PyModule_AddIntConstant(m, "THREAD_UNKNOWN", CANVAS_THREAD_UNKNOWN) < 0 ||
              PyModule_AddIntConstant(m, "THREAD_APP", CANVAS_THREAD_APP) < 0 ||
              PyModule_AddIntConstant(m, "THREAD_GC", CANVAS_THREAD_GC) < 0 ||
              PyModule_AddIntConstant(m, "THREAD_JIT", CANVAS_THREAD_JIT) < 0 ||
              PyModule_AddIntConstant(m, "THREAD_RUNTIME", CANVAS_THREAD_RUNTIME) < 0))
        Py_CLEAR(m);
    return m;
}
