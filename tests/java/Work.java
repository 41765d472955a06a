import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/**
 * Java under far memory: linked structures, several threads, GC churn, and the exceptions that the
 * JVM makes from SIGSEGV. Prints a checksum that depends on every object and on nothing else.
 *
 * Arguments: nodes, rounds, threads, seed.
 */
public final class Work {
    static final class Node {
        Node left, right;
        final long key;
        long value;
        final byte[] pad;

        Node(long key) {
            this.key = key;
            this.value = mix(key);
            this.pad = new byte[48];
            for (int i = 0; i < 16; i++) pad[i] = (byte) (key >>> (i * 4));
        }

        long sum() {
            long s = value * 31 + key;
            for (byte b : pad) s = s * 131 + b;
            return s;
        }
    }

    static long mix(long x) {
        x ^= x >>> 33;
        x *= 0xff51afd7ed558ccdL;
        x ^= x >>> 33;
        x *= 0xc4ceb9fe1a85ec53L;
        return x ^ (x >>> 33);
    }

    /** A linked list through all nodes in scattered order, so that traversal jumps. */
    static Node[] build(int n, long seed) {
        Node[] all = new Node[n];
        for (int i = 0; i < n; i++) all[i] = new Node(seed + i);
        for (int i = 0; i < n; i++) {
            all[i].left = all[(int) Long.remainderUnsigned(mix(seed ^ i), n)];
            all[i].right = all[(i + 1) % n];
        }
        return all;
    }

    static long walk(Node start, int steps, boolean scattered) {
        long s = 0;
        Node at = start;
        for (int i = 0; i < steps; i++) {
            s = s * 31 + at.sum();
            at.value += i & 3;
            at = scattered && (i & 7) == 0 ? at.left : at.right;
        }
        return s;
    }

    static long churn(int rounds, long seed) {
        long s = 0;
        List<byte[]> keep = new ArrayList<>();
        for (int i = 0; i < 64; i++) keep.add(new byte[0]);
        for (int r = 0; r < rounds; r++) {
            long x = mix(seed + r);
            byte[] fresh = new byte[(int) (x & 0x3fff) + 16];
            Arrays.fill(fresh, (byte) x);
            fresh[7] = (byte) (x >>> 8);
            byte[] old = keep.set((int) ((x >>> 20) & 63), fresh);
            if (old.length > 0) s = s * 31 + old[7] + old[old.length - 1];
        }
        return s;
    }

    static int fieldOf(Node n) {
        return n.pad.length;
    }

    /** Null dereferences: compiled code finds them by SIGSEGV. */
    static long nulls(int rounds, Node node) {
        long caught = 0;
        for (int i = 0; i < rounds; i++) {
            Node n = (i % 50 == 0) ? null : node;
            try {
                caught += fieldOf(n) == 48 ? 0 : 1000;
            } catch (NullPointerException e) {
                caught++;
            }
        }
        return caught;
    }

    static int depth;

    static int recurse(int a, int b) {
        depth++;
        return recurse(a + 1, b ^ a) + 1;
    }

    static long overflows(int rounds) {
        long caught = 0;
        for (int i = 0; i < rounds; i++) {
            depth = 0;
            try {
                recurse(i, i);
            } catch (StackOverflowError e) {
                if (depth > 500) caught++;
            }
        }
        return caught;
    }

    static long maps(int n, long seed) {
        HashMap<String, Long> h = new HashMap<>();
        TreeMap<Long, String> t = new TreeMap<>();
        for (int i = 0; i < n; i++) {
            long k = mix(seed + i);
            h.put("key" + (k & 0xfffff), k);
            t.put(k, "value" + i);
        }
        long s = 0;
        for (var e : t.entrySet()) s = s * 31 + e.getKey() + e.getValue().length();
        long u = 0;
        for (var e : h.entrySet()) u += e.getValue() * e.getKey().length();
        return s ^ u;
    }

    public static void main(String[] args) throws Exception {
        int nodes = Integer.parseInt(args[0]);
        int rounds = Integer.parseInt(args[1]);
        int threads = Integer.parseInt(args[2]);
        long seed = Long.parseLong(args[3]);
        long began = System.nanoTime();
        ExecutorService pool = Executors.newFixedThreadPool(threads);
        List<Future<Long>> futures = new ArrayList<>();
        for (int t = 0; t < threads; t++) {
            final long mine = seed + t * 1_000_003L;
            futures.add(pool.submit(() -> {
                Node[] all = build(nodes / threads, mine);
                long s = 0;
                for (int r = 0; r < rounds; r++) {
                    s = s * 31 + walk(all[r % all.length], all.length, r % 2 == 1);
                    s = s * 31 + churn(2000, mine + r);
                    s = s * 31 + nulls(20_000, all[0]);
                }
                s = s * 31 + maps(nodes / threads / 16, mine);
                for (Node n : all) s = s * 31 + n.sum();
                return s;
            }));
        }
        long sum = 0;
        for (Future<Long> f : futures) sum = sum * 31 + f.get();
        pool.shutdown();
        long[] inThread = new long[1];
        Thread small = new Thread(null, () -> inThread[0] = overflows(20), "small", 512 << 10);
        small.start();
        small.join();
        long caught = overflows(20);
        long npe = nulls(2_000_000, new Node(1));
        // Many short threads, each with its own stack and TLAB.
        Thread[] many = new Thread[100];
        long[] parts = new long[many.length];
        for (int i = 0; i < many.length; i++) {
            final int id = i;
            many[i] = new Thread(() -> parts[id] = churn(200, id));
            many[i].start();
        }
        for (Thread t : many) t.join();
        for (long p : parts) sum = sum * 31 + p;
        System.out.printf("sum %016x npe %d soe %d %d%n", sum, npe, caught, inThread[0]);
        System.err.printf("seconds %.3f%n", (System.nanoTime() - began) / 1e9);
    }
}
