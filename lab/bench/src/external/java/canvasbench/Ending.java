package canvasbench;

import java.io.File;
import java.util.Properties;
import org.HdrHistogram.EncodableHistogram;
import org.HdrHistogram.Histogram;
import org.HdrHistogram.HistogramIterationValue;
import org.HdrHistogram.HistogramLogReader;
import site.ycsb.Utils;

/**
 * After YCSB's measured part: reads records back, adds up its latency histograms, and prints one
 * line, {@code CHECK {...}}, to standard error. YCSB's main ends the process itself, so this is a
 * shutdown hook; and it has closed standard output by then.
 */
final class Ending {
  /** Records read back at most; spread over all of them. */
  private static final long READ_BACK = 20_000;

  private Ending() {}

  static void arrange(Properties p, Class<? extends Records> store, Values values) {
    Runtime.getRuntime().addShutdownHook(new Thread(() -> run(p, store, values)));
  }

  private static void run(Properties p, Class<? extends Records> store, Values values) {
    StringBuilder line = new StringBuilder("CHECK {");
    try {
      long checked = readBack(p, store);
      line.append("\"checked\": ").append(checked);
      line.append(", \"wrong\": ").append(values.wrongCount());
      line.append(", \"failed\": ").append(Records.failedCount());
      latencies(p, line);
    } catch (Throwable e) {
      System.err.println("READING BACK FAILED " + e);
      return;
    }
    System.err.println(line.append("}"));
  }

  private static long readBack(Properties p, Class<? extends Records> store) throws Exception {
    long records = Long.parseLong(p.getProperty("recordcount"));
    long step = Math.max(1, (records + READ_BACK - 1) / READ_BACK);
    Records reader = store.getDeclaredConstructor().newInstance();
    reader.setProperties(p);
    reader.init();
    long checked = 0;
    for (long n = 0; n < records; n += step) {
      reader.verify("user" + Utils.hash(n));
      checked++;
    }
    reader.cleanup();
    return checked;
  }

  /** Of all requests of all kinds; a read-modify-write is its read and its update. */
  private static void latencies(Properties p, StringBuilder line) throws Exception {
    Histogram all = new Histogram(3);
    all.setAutoResize(true);
    for (String kind : new String[] {"READ", "UPDATE", "INSERT", "SCAN"}) {
      File file = new File(p.getProperty("hdrhistogram.output.path") + kind + ".hdr");
      if (!file.exists()) {
        continue;
      }
      HistogramLogReader log = new HistogramLogReader(file);
      EncodableHistogram part;
      while ((part = log.nextIntervalHistogram()) != null) {
        all.add((Histogram) part);
      }
    }
    line.append(", \"requests\": ").append(all.getTotalCount());
    if (all.getTotalCount() == 0) {
      return;
    }
    for (double q : new double[] {50, 95, 99, 99.9}) {
      String name = "p" + String.valueOf(q).replace(".0", "").replace(".", "") + "_us";
      line.append(", \"").append(name).append("\": ").append(all.getValueAtPercentile(q));
    }
    line.append(", \"max_us\": ").append(all.getMaxValue()).append(", \"histogram_us\": [");
    String comma = "";
    for (HistogramIterationValue v : all.logarithmicBucketValues(8, 1.15)) {
      if (v.getCountAddedInThisIterationStep() > 0) {
        line.append(comma).append('[').append(v.getValueIteratedTo()).append(", ")
            .append(v.getCountAddedInThisIterationStep()).append(']');
        comma = ", ";
      }
    }
    line.append(']');
  }
}
