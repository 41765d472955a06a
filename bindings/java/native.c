/* canvas.h for Java (org.canvas.Canvas). */
#include "canvas.h"
#include "org_canvas_Canvas.h"

#include <errno.h>

JNIEXPORT jlong JNICALL Java_org_canvas_Canvas_version(JNIEnv *env, jclass class) {
    (void)env, (void)class;
    return canvas_version();
}

JNIEXPORT jlong JNICALL Java_org_canvas_Canvas_prefetch__JJ(JNIEnv *env, jclass class, jlong address, jlong bytes) {
    (void)env, (void)class;
    return bytes < 0 ? -EINVAL : canvas_prefetch((const void *)(uintptr_t)address, (size_t)bytes);
}

JNIEXPORT jlong JNICALL Java_org_canvas_Canvas_region__JJIJI(JNIEnv *env, jclass class, jlong address, jlong bytes,
                                                             jint kind, jlong base, jint shift) {
    (void)env, (void)class;
    if (bytes < 0 || shift < 0)
        return -EINVAL;
    return canvas_region((const void *)(uintptr_t)address, (size_t)bytes, kind, (uint64_t)base, (unsigned)shift);
}

JNIEXPORT jlong JNICALL Java_org_canvas_Canvas_threadKind(JNIEnv *env, jclass class, jint kind) {
    (void)env, (void)class;
    return canvas_thread_kind(0, kind);
}

static jlongArray longs(JNIEnv *env, const jlong *from, jsize n) {
    jlongArray array = (*env)->NewLongArray(env, n);
    if (array)
        (*env)->SetLongArrayRegion(env, array, 0, n, from);
    return array;
}

JNIEXPORT jlongArray JNICALL Java_org_canvas_Canvas_stats(JNIEnv *env, jclass class) {
    (void)class;
    struct canvas_stats stats = {0};
    if (canvas_stats(&stats, sizeof stats) < 0)
        return NULL;
    return longs(env, (const jlong *)&stats, sizeof stats / sizeof(jlong));
}

JNIEXPORT jlongArray JNICALL Java_org_canvas_Canvas_faultsNext(JNIEnv *env, jclass class, jint n, jint timeout_ms) {
    (void)class;
    struct canvas_fault faults[64];
    jlong fields[64 * 5];
    if (n > 64)
        n = 64;
    long got = n < 1 ? -EINVAL : canvas_faults_next(faults, (size_t)n, timeout_ms);
    if (got < 0)
        return NULL;
    for (long i = 0; i < got; i++) {
        jlong *f = &fields[5 * i];
        f[0] = (jlong)faults[i].address, f[1] = (jlong)faults[i].ip, f[2] = faults[i].tid, f[3] = faults[i].kind;
        f[4] = (jlong)faults[i].time_ns;
    }
    return longs(env, fields, (jsize)(5 * got));
}

JNIEXPORT jlong JNICALL Java_org_canvas_Canvas_addressOf(JNIEnv *env, jclass class, jobject buffer) {
    (void)class;
    return (jlong)(uintptr_t)(*env)->GetDirectBufferAddress(env, buffer);
}
