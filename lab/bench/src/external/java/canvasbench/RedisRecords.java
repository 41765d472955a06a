package canvasbench;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import redis.clients.jedis.Jedis;
import redis.clients.jedis.Pipeline;
import redis.clients.jedis.Response;

/**
 * As YCSB's own binding does it: a record is a hash, and all keys are in one sorted set by the hash
 * of their name, for scans. With canvas.plain=true a record is one string, and there is no index.
 */
public final class RedisRecords extends Records {
  private static final byte[] INDEX = "_indices".getBytes(StandardCharsets.US_ASCII);

  private Jedis jedis;
  private boolean plain;
  private byte[][] names;

  @Override
  protected void connect(String host, int port) {
    plain = Boolean.parseBoolean(getProperties().getProperty("canvas.plain", "false"));
    names = new byte[values.fields][];
    for (int f = 0; f < names.length; f++) {
      names[f] = bytes("field" + f);
    }
    jedis = new Jedis(host, port, 120_000);
    jedis.connect();
  }

  @Override
  protected void close() {
    jedis.close();
  }

  private static byte[] bytes(String s) {
    return s.getBytes(StandardCharsets.US_ASCII);
  }

  @Override
  protected void store(String key, int[] fields, int[] versions, boolean isNew) {
    if (plain) {
      String reply = jedis.set(bytes(key), values.make(key, 0, versions[0]));
      if (!"OK".equals(reply)) {
        throw new IllegalStateException("SET " + key + ": " + reply);
      }
      return;
    }
    Map<byte[], byte[]> map = new HashMap<>();
    for (int i = 0; i < fields.length; i++) {
      map.put(names[fields[i]], values.make(key, fields[i], versions[i]));
    }
    long added = jedis.hset(bytes(key), map);
    if (added != (isNew ? fields.length : 0)) {
      throw new IllegalStateException("HSET " + key + ": " + added + " fields are new");
    }
    if (isNew) {
      jedis.zadd(INDEX, key.hashCode(), bytes(key));
    }
  }

  private byte[][] fields(Map<byte[], byte[]> map) {
    byte[][] got = new byte[names.length][];
    for (int f = 0; f < got.length; f++) {
      got[f] = map.get(names[f]);
    }
    return got;
  }

  @Override
  protected byte[][] load(String key) {
    return plain ? new byte[][] {jedis.get(bytes(key))} : fields(jedis.hgetAll(bytes(key)));
  }

  @Override
  protected String[] keysFrom(String start, int count) {
    // Names of one hash are in the order of their bytes, so the start may not come first.
    List<byte[]> found = jedis.zrangeByScore(INDEX, start.hashCode(), Double.POSITIVE_INFINITY, 0, count + 8);
    List<String> keys = new ArrayList<>();
    for (byte[] k : found) {
      String key = new String(k, StandardCharsets.US_ASCII);
      if ((keys.isEmpty() && !key.equals(start)) || keys.size() == count) {
        continue;
      }
      keys.add(key);
    }
    return keys.toArray(new String[0]);
  }

  @Override
  protected byte[][][] loadAll(String[] keys) {
    List<Response<Map<byte[], byte[]>>> replies = new ArrayList<>();
    Pipeline pipeline = jedis.pipelined();
    for (String key : keys) {
      replies.add(pipeline.hgetAll(bytes(key)));
    }
    pipeline.sync();
    byte[][][] all = new byte[keys.length][][];
    for (int i = 0; i < keys.length; i++) {
      all[i] = fields(replies.get(i).get());
    }
    return all;
  }
}
