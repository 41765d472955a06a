package org.canvas;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;

/**
 * What a program can tell canvas of its memory, and ask it (docs/API.md).
 *
 * <p>All calls return a number that is not negative, or a negative errno; {@link #ENOSYS} where canvas does not manage
 * this process. Buffers must be direct: the heap's objects move.
 */
public final class Canvas {
    /** There is no canvas here: nothing was done. */
    public static final long ENOSYS = -38;
    /** Too much waits already. */
    public static final long EAGAIN = -11;
    /** An argument is wrong. */
    public static final long EINVAL = -22;

    /** Kinds of regions, as in canvas.h. */
    public static final int REGION_NORMAL = 0, REGION_ARRAY = 1, REGION_REFS64 = 2, REGION_REFS32 = 3,
            REGION_RANDOM = 4;
    /** Kinds of threads, as in canvas.h. */
    public static final int THREAD_UNKNOWN = 0, THREAD_APP = 1, THREAD_GC = 2, THREAD_JIT = 3, THREAD_RUNTIME = 4;

    /** Places in what {@link #stats} returns. */
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

    /** Brings memory in, soon, in the background; pages accepted. */
    public static native long prefetch(long address, long bytes);

    /** The same for a part of a direct buffer. */
    public static long prefetch(ByteBuffer buffer, int offset, int bytes) {
        return prefetch(address(buffer, offset, bytes), bytes);
    }

    /** Tells what is in a region. */
    public static native long region(long address, long bytes, int kind, long base, int shift);

    /** The same for a direct buffer. */
    public static long region(ByteBuffer buffer, int kind) {
        return region(address(buffer, 0, buffer.capacity()), buffer.capacity(), kind, 0, 0);
    }

    /** Tells what the calling thread is for. */
    public static native long threadKind(int kind);

    /** What canvas counts, by the places above; null without canvas. */
    public static native long[] stats();

    /** Takes the oldest faults: address, instruction, thread, kind and time in ns of each; null without canvas. */
    public static native long[] faultsNext(int n, int timeoutMs);

    /** Where a part of a direct buffer lies. */
    public static long address(ByteBuffer buffer, int offset, int bytes) {
        if (!buffer.isDirect()) {
            throw new IllegalArgumentException("the buffer is not direct: its memory can move");
        }
        java.util.Objects.checkFromIndexSize(offset, bytes, buffer.capacity());
        return addressOf(buffer) + offset;
    }

    private static native long addressOf(ByteBuffer buffer);
}
