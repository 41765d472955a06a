package canvasbench;

import java.util.Map;
import java.util.Set;
import java.util.Vector;
import java.util.HashMap;
import java.util.concurrent.atomic.AtomicLong;
import site.ycsb.ByteIterator;
import site.ycsb.DB;
import site.ycsb.DBException;
import site.ycsb.Status;

/**
 * A store under YCSB whose values are checked ({@link Values}); what stores them is up to the
 * subclass. YCSB makes one object for each of its threads.
 */
public abstract class Records extends DB {
  private static Values shared;
  private static final AtomicLong FAILED = new AtomicLong();

  protected Values values;

  protected abstract void connect(String host, int port) throws Exception;

  /** Stores the fields named (all of them for an insert) with their new versions. */
  protected abstract void store(String key, int[] fields, int[] versions, boolean isNew) throws Exception;

  /** The record's fields by number; null where one is missing. */
  protected abstract byte[][] load(String key) throws Exception;

  protected abstract void close() throws Exception;

  /** Keys from `start` on, for scans. */
  protected String[] keysFrom(String start, int count) throws Exception {
    throw new UnsupportedOperationException("no scans");
  }

  /** Several records at once, for scans. */
  protected byte[][][] loadAll(String[] keys) throws Exception {
    byte[][][] all = new byte[keys.length][][];
    for (int i = 0; i < keys.length; i++) {
      all[i] = load(keys[i]);
    }
    return all;
  }

  /** One for the whole process: what one thread wrote another one reads. */
  private static synchronized Values shared(Records first) {
    if (shared == null) {
      shared = new Values(first.getProperties());
      Ending.arrange(first.getProperties(), first.getClass(), shared);
    }
    return shared;
  }

  @Override
  public void init() throws DBException {
    values = shared(this);
    try {
      connect("127.0.0.1", Integer.parseInt(getProperties().getProperty("canvas.port")));
    } catch (Exception e) {
      throw new DBException(e);
    }
  }

  @Override
  public void cleanup() throws DBException {
    try {
      close();
    } catch (Exception e) {
      throw new DBException(e);
    }
  }

  static long failedCount() {
    return FAILED.get();
  }

  private Status failed(Exception e) {
    if (FAILED.incrementAndGet() <= 5) {
      System.err.println("FAILED REQUEST " + e);
    }
    return Status.ERROR;
  }

  private boolean check(String key, byte[][] got, int[] oldest) {
    boolean right = true;
    for (int f = 0; f < values.fields; f++) {
      right &= values.check(key, f, got[f], oldest[f]);
    }
    return right;
  }

  /** Reads and checks all fields of a record. */
  boolean verify(String key) throws Exception {
    int[] oldest = values.oldest(key);
    return check(key, load(key), oldest);
  }

  // YCSB looks at results only with dataintegrity=true, so they are checked here and not handed on.

  @Override
  public Status read(String table, String key, Set<String> fields, Map<String, ByteIterator> result) {
    try {
      return verify(key) ? Status.OK : Status.UNEXPECTED_STATE;
    } catch (Exception e) {
      return failed(e);
    }
  }

  @Override
  public Status scan(String table, String start, int count, Set<String> fields,
      Vector<HashMap<String, ByteIterator>> result) {
    try {
      String[] keys = keysFrom(start, count);
      if (keys.length == 0 || !keys[0].equals(start)) {
        values.wrong("scan from " + start + ": begins with " + (keys.length == 0 ? "nothing" : keys[0]));
        return Status.UNEXPECTED_STATE;
      }
      int[][] oldest = new int[keys.length][];
      for (int i = 0; i < keys.length; i++) {
        oldest[i] = values.oldest(keys[i]);
      }
      byte[][][] got = loadAll(keys);
      boolean right = true;
      for (int i = 0; i < keys.length; i++) {
        right &= check(keys[i], got[i], oldest[i]);
      }
      return right ? Status.OK : Status.UNEXPECTED_STATE;
    } catch (Exception e) {
      return failed(e);
    }
  }

  @Override
  public Status update(String table, String key, Map<String, ByteIterator> changed) {
    int[] fields = new int[changed.size()];
    int[] versions = new int[fields.length];
    int n = 0;
    for (String name : changed.keySet()) {
      fields[n++] = Values.field(name);
    }
    Values.Versions v = values.forUpdate(key);
    // Two updates of one record wait for each other, so that its versions only grow.
    synchronized (v) {
      for (int i = 0; i < n; i++) {
        versions[i] = v.sent.incrementAndGet(fields[i]);
      }
      try {
        store(key, fields, versions, false);
      } catch (Exception e) {
        return failed(e);
      }
      for (int i = 0; i < n; i++) {
        v.acknowledged.set(fields[i], versions[i]);
      }
    }
    return Status.OK;
  }

  @Override
  public Status insert(String table, String key, Map<String, ByteIterator> all) {
    int[] fields = new int[values.fields];
    for (int f = 0; f < fields.length; f++) {
      fields[f] = f;
    }
    try {
      store(key, fields, new int[fields.length], true);
      return Status.OK;
    } catch (Exception e) {
      return failed(e);
    }
  }

  @Override
  public Status delete(String table, String key) {
    return Status.NOT_IMPLEMENTED;
  }
}
