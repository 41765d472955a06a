package canvasbench;

import java.io.ByteArrayOutputStream;
import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import net.spy.memcached.ConnectionFactoryBuilder;
import net.spy.memcached.FailureMode;
import net.spy.memcached.MemcachedClient;
import net.spy.memcached.internal.OperationFuture;

/** A record is one item, its fields one after the other; updates replace all of them. */
public final class MemcachedRecords extends Records {
  private MemcachedClient client;

  @Override
  protected void connect(String host, int port) throws Exception {
    client = new MemcachedClient(
        new ConnectionFactoryBuilder()
            .setProtocol(ConnectionFactoryBuilder.Protocol.TEXT)
            .setFailureMode(FailureMode.Cancel)
            .setOpTimeout(120_000)
            .build(),
        List.of(new InetSocketAddress(host, port)));
    // It connects in the background, and cancels what is asked before.
    for (int i = 0; ; i++) {
      try {
        client.get("connected");
        return;
      } catch (RuntimeException e) {
        if (i == 500) {
          throw e;
        }
        Thread.sleep(20);
      }
    }
  }

  @Override
  protected void close() {
    client.shutdown();
  }

  @Override
  protected void store(String key, int[] fields, int[] versions, boolean isNew) throws Exception {
    if (fields.length != values.fields) {
      throw new IllegalStateException("updates must replace all fields (writeallfields=true)");
    }
    int[] byField = new int[fields.length];
    for (int i = 0; i < fields.length; i++) {
      byField[fields[i]] = versions[i];
    }
    ByteArrayOutputStream item = new ByteArrayOutputStream();
    for (int f = 0; f < byField.length; f++) {
      item.write(values.make(key, f, byField[f]));
    }
    // `add` and `replace` also find out whether the server threw the item away.
    byte[] bytes = item.toByteArray();
    OperationFuture<Boolean> done = isNew ? client.add(key, 0, bytes) : client.replace(key, 0, bytes);
    if (!done.get(120, TimeUnit.SECONDS)) {
      throw new IllegalStateException(key + ": " + done.getStatus().getMessage());
    }
  }

  @Override
  protected byte[][] load(String key) {
    byte[] item = (byte[]) client.get(key);
    byte[][] got = new byte[values.fields][];
    int at = 0;
    for (int f = 0; item != null && f < got.length && at < item.length; f++) {
      // The last one gets what is left: too many bytes are found by its length.
      int end = f == got.length - 1 ? item.length : Math.min(item.length, at + values.length(key, f));
      got[f] = Arrays.copyOfRange(item, at, end);
      at = end;
    }
    return got;
  }
}
