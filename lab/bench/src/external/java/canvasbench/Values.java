package canvasbench;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicLong;

/**
 * What is stored, and whether what comes back is right.
 *
 * <p>YCSB's own values are random and never looked at again, or (with dataintegrity=true) the same
 * after each update, so that a lost update is not seen and a page that was written to looks clean.
 * Here a value follows from seed, key, field and a version that grows with each update. A value
 * that is read must be, to the byte, one of a version that could be there: not older than the last
 * update that was acknowledged before the read began, not newer than the last one that was sent.
 * More than half of a value repeats, so that it compresses as ordinary data do.
 */
final class Values {
  private static final int HEADER = 24;
  private static final int RANDOM = 8;
  private static final int PHRASE = 45;
  private static final byte[] HEX = "0123456789abcdef".getBytes(StandardCharsets.US_ASCII);

  /** Versions of one record's fields: sent, and acknowledged. */
  static final class Versions {
    final AtomicIntegerArray sent;
    final AtomicIntegerArray acknowledged;

    Versions(int fields) {
      sent = new AtomicIntegerArray(fields);
      acknowledged = new AtomicIntegerArray(fields);
    }

    int[] acknowledged() {
      int[] a = new int[acknowledged.length()];
      for (int f = 0; f < a.length; f++) {
        a[f] = acknowledged.get(f);
      }
      return a;
    }
  }

  final int fields;
  private final int length;
  private final boolean skewedSizes;
  private final long seed;
  private final byte[][] phrases = new byte[4][PHRASE];
  /** Only records that were ever updated; all others are of version 0. */
  private final ConcurrentHashMap<String, Versions> updated = new ConcurrentHashMap<>();
  private final AtomicLong wrong = new AtomicLong();

  Values(Properties p) {
    fields = Integer.parseInt(p.getProperty("fieldcount", "10"));
    length = Integer.parseInt(p.getProperty("fieldlength", "100"));
    skewedSizes = Boolean.parseBoolean(p.getProperty("canvas.skewedsizes", "false"));
    seed = Long.parseLong(p.getProperty("canvas.seed", "1"));
    long s = mix(seed);
    for (byte[] phrase : phrases) {
      for (int i = 0; i < PHRASE; i++) {
        s = mix(s + 1);
        phrase[i] = printable(s);
      }
    }
  }

  static long mix(long x) {
    x ^= x >>> 33;
    x *= 0xff51afd7ed558ccdL;
    x ^= x >>> 33;
    x *= 0xc4ceb9fe1a85ec53L;
    return x ^ (x >>> 33);
  }

  private static byte printable(long x) {
    return (byte) (33 + (x >>> 8 & 63));
  }

  private long identity(String key, int field) {
    long h = mix(seed);
    for (int i = 0; i < key.length(); i++) {
      h = h * 31 + key.charAt(i);
    }
    return mix(h * 1000003 + field);
  }

  /**
   * Bytes of a value. With skewed sizes the generalised Pareto distribution that Atikoglu et al.
   * (SIGMETRICS '12) fitted to the values of Facebook's ETC pool, from 32 bytes to 8 KiB.
   */
  int length(String key, int field) {
    if (!skewedSizes) {
      return Math.max(length, HEADER);
    }
    double u = (identity(key, field) >>> 11) / (double) (1L << 53);
    double size = 214.476 / 0.348238 * (Math.pow(1 - u, -0.348238) - 1);
    return (int) Math.max(32, Math.min(8192, size));
  }

  byte[] make(String key, int field, int version) {
    byte[] v = new byte[length(key, field)];
    long id = identity(key, field);
    for (int i = 0; i < 16; i++) {
      v[i] = HEX[(int) (id >>> (60 - 4 * i)) & 15];
    }
    for (int i = 0; i < 8; i++) {
      v[16 + i] = HEX[version >>> (28 - 4 * i) & 15];
    }
    long s = mix(id + version);
    for (int at = HEADER; at < v.length; ) {
      int n = Math.min(RANDOM, v.length - at);
      for (int i = 0; i < n; i++) {
        s = mix(s + 1);
        v[at++] = printable(s);
      }
      n = Math.min(PHRASE, v.length - at);
      System.arraycopy(phrases[(int) s & 3], 0, v, at, n);
      at += n;
    }
    return v;
  }

  static int field(String name) {
    return Integer.parseInt(name.substring("field".length()));
  }

  /** To be locked while an update of this record is under way, and then read from. */
  Versions forUpdate(String key) {
    return updated.computeIfAbsent(key, k -> new Versions(fields));
  }

  /** The oldest versions that a read which begins now may return. */
  int[] oldest(String key) {
    Versions v = updated.get(key);
    return v == null ? new int[fields] : v.acknowledged();
  }

  /** Whether `got` is a value that may be there; counts and reports it when not. */
  boolean check(String key, int field, byte[] got, int oldest) {
    String problem = problem(key, field, got, oldest);
    if (problem == null) {
      return true;
    }
    wrong(key + " field " + field + ": " + problem);
    return false;
  }

  private String problem(String key, int field, byte[] got, int oldest) {
    if (got == null) {
      return "not there";
    }
    int expected = length(key, field);
    if (got.length != expected) {
      return got.length + " bytes instead of " + expected;
    }
    int version;
    try {
      version = Integer.parseUnsignedInt(new String(got, 16, 8, StandardCharsets.ISO_8859_1), 16);
    } catch (NumberFormatException e) {
      return "no version in it";
    }
    Versions v = updated.get(key);
    int newest = v == null ? 0 : v.sent.get(field);
    if (version < oldest || version > newest) {
      return "version " + version + ", may be " + oldest + " to " + newest;
    }
    byte[] right = make(key, field, version);
    if (!Arrays.equals(got, right)) {
      return "differs at byte " + Arrays.mismatch(got, right) + " of " + right.length;
    }
    return null;
  }

  void wrong(String what) {
    if (wrong.incrementAndGet() <= 5) {
      System.err.println("WRONG VALUE " + what);
    }
  }

  long wrongCount() {
    return wrong.get();
  }
}
