import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.canvas.Canvas;

/**
 * Sums a direct buffer that is larger than memory, block by block, twice, and asks canvas for the block that comes
 * next. Without canvas the answer is the same.
 *
 * <p>java -cp canvas.jar ArraySum.java MIB
 */
public final class ArraySum {
    private static final int BLOCK = 1 << 20;

    /** The program. */
    public static void main(String[] args) {
        int blocks = Integer.parseInt(args[0]);
        ByteBuffer memory = ByteBuffer.allocateDirect(blocks * BLOCK).order(ByteOrder.nativeOrder());
        for (int at = 0; at < memory.capacity(); at += 8) {
            memory.putLong(at, (at / 8L * 2654435761L) >>> 7);
        }
        boolean here = Canvas.version() >= 0;
        long sum = 0;
        long asked = 0;
        for (int turn = 1; turn <= 2; turn++) {
            for (int block = 0; block < blocks; block++) {
                if (here && block + 1 < blocks) {
                    // EAGAIN: the queue is full, and the pages would come too late.
                    asked += Math.max(Canvas.prefetch(memory, (block + 1) * BLOCK, BLOCK), 0);
                }
                for (int at = block * BLOCK; at < (block + 1) * BLOCK; at += 8) {
                    sum = Long.rotateLeft(sum, 5) + memory.getLong(at) * turn;
                }
            }
        }
        System.out.println("sum " + Long.toHexString(sum));
        System.err.println(here ? asked + " pages asked for" : "without canvas");
    }
}
