import java.io.BufferedReader;
import java.io.InputStreamReader;

/** Holds so many MiB of arrays, and reads all of them for each line of its input, in scattered order. */
public final class Resume {
    static final int BYTES = 4000;

    static byte at(int i, int k) {
        int x = (i * 31 + k / 4) * 0x9e3779b1;
        return (byte) (x >>> 24);
    }

    public static void main(String[] args) throws Exception {
        int n = Integer.parseInt(args[0]) * 256;
        byte[][] all = new byte[n][];
        for (int i = 0; i < n; i++) {
            all[i] = new byte[BYTES];
            for (int k = 0; k < BYTES; k++) all[i][k] = at(i, k);
        }
        System.gc();
        System.out.println("ready");
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in));
        while (in.readLine() != null) {
            long began = System.nanoTime();
            for (int j = 0; j < n; j++) {
                int i = (int) ((j * 7919L) % n);
                for (int k = 0; k < BYTES; k += 97) {
                    if (all[i][k] != at(i, k)) throw new AssertionError("array " + i);
                }
            }
            System.out.println("touched " + (System.nanoTime() - began) / 1000);
        }
        System.out.println("right");
    }
}
