package org.canvas;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/**
 * Hints from a program to canvas about its memory, and figures in return (docs/API.md).
 *
 * <p>All calls return a non-negative number or a negative errno; {@link #ENOSYS} where canvas does not manage this
 * process. Buffers must be direct, because objects on the heap move.
 */
public final class Canvas {
    /** canvas does not manage this process; the call did nothing. */
    public static final long ENOSYS = -38;
    /** The queue of hints is full. */
    public static final long EAGAIN = -11;
    /** An argument is wrong. */
    public static final long EINVAL = -22;

    /** Kinds of regions, as in canvas.h. */
    public static final int REGION_NORMAL = 0, REGION_ARRAY = 1, REGION_REFS64 = 2, REGION_REFS32 = 3,
            REGION_RANDOM = 4;
    /** Kinds of threads, as in canvas.h. */
    public static final int THREAD_UNKNOWN = 0, THREAD_APP = 1, THREAD_GC = 2, THREAD_JIT = 3, THREAD_RUNTIME = 4;

    /** Indexes into the array of {@link #stats}. */
    public static final int LOCAL_BYTES = 0, LOCAL_LIMIT_BYTES = 1, POOL_BYTES = 2, RESIDENT_BYTES = 3, FAR_BYTES = 4,
            FAULTS_FAR = 5, PAGES_IN = 6, PAGES_OUT = 7, PREFETCH_ISSUED = 8, PREFETCH_USED = 9, HINT_PAGES_IN = 10,
            HINT_PAGES_OUT = 11, HINTS_DROPPED = 12, FAULTS_FORWARDED = 13, FAULTS_DROPPED = 14;

    static {
        try (InputStream library = Canvas.class.getResourceAsStream("/native/libcanvas-java.so")) {
            if (library == null) {
                throw new IOException("the archive lacks native/libcanvas-java.so");
            }
            Path copy = Files.createTempFile("libcanvas-java", ".so");
            try {
                Files.copy(library, copy, StandardCopyOption.REPLACE_EXISTING);
                System.load(copy.toString());
            } finally {
                // It stays mapped.
                Files.delete(copy);
            }
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }

    private Canvas() {}

    /** The version of the canvas that manages this process, or {@link #ENOSYS}. */
    public static native long version();

    /** Brings memory in, soon, in the background; returns the pages that were queued. */
    public static native long prefetch(long address, long bytes);

    /** Brings in a part of a direct buffer. */
    public static long prefetch(ByteBuffer buffer, int offset, int bytes) {
        return prefetch(address(buffer, offset, bytes), bytes);
    }

    /** Sets what a region contains. */
    public static native long region(long address, long bytes, int kind, long base, int shift);

    /** Sets what a direct buffer contains. */
    public static long region(ByteBuffer buffer, int kind) {
        return region(address(buffer, 0, buffer.capacity()), buffer.capacity(), kind, 0, 0);
    }

    /** Sets what the calling thread is for. */
    public static native long threadKind(int kind);

    /** Figures by the indexes above; null without canvas. */
    public static native long[] stats();

    /** Takes the oldest faults: address, instruction, thread, kind and time in ns of each; null without canvas. */
    public static native long[] faultsNext(int n, int timeoutMs);

    /** The address of a part of a direct buffer. */
    public static long address(ByteBuffer buffer, int offset, int bytes) {
        if (!buffer.isDirect()) {
            throw new IllegalArgumentException("the buffer is not direct: its memory can move");
        }
        java.util.Objects.checkFromIndexSize(offset, bytes, buffer.capacity());
        return addressOf(buffer) + offset;
    }

    private static native long addressOf(ByteBuffer buffer);
}
