import com.azure.core.util.BinaryData;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/** Plays all scenarios in one virtual machine, several at a time: {@code java Scenarios JSON}; prints one line of JSON. */
public final class Scenarios {
  /** Most of their time is waiting. */
  private static final int AT_A_TIME = 10;

  /** Returns what it found, for the test that asked for it. */
  interface Scenario {
    Object play(Place place) throws Exception;
  }

  private Scenarios() {}

  @SuppressWarnings("unchecked")
  public static void main(String[] words) throws Exception {
    Map<String, Object> given = BinaryData.fromString(words[0]).toObject(Map.class);
    long limit = ((Number) given.get("limit")).longValue();
    Map<String, Scenario> all = new LinkedHashMap<>();
    // Those that wait for locks first.
    all.putAll(Locks.ALL);
    all.putAll(Processors.ALL);
    all.putAll(Sessions.ALL);
    all.putAll(Messages.ALL);
    all.putAll(Rules.ALL);
    all.putAll(Entities.ALL);
    if (given.get("only") instanceof List<?> only) {
      all.keySet().retainAll(only);
    }
    ExecutorService threads = Executors.newFixedThreadPool(AT_A_TIME);
    Map<String, Future<Map<String, Object>>> playing = new LinkedHashMap<>();
    all.forEach((name, scenario) -> playing.put(name, threads.submit(() -> played(given, name, scenario))));
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(limit);
    Map<String, Object> found = new LinkedHashMap<>();
    for (Map.Entry<String, Future<Map<String, Object>>> one : playing.entrySet()) {
      found.put(one.getKey(), outcome(one.getValue(), end - System.nanoTime()));
    }
    System.out.println(BinaryData.fromObject(found).toString());
    // Threads of the clients outlive them.
    System.exit(0);
  }

  private static Map<String, Object> played(Map<String, Object> given, String name, Scenario scenario) {
    long began = System.nanoTime();
    Map<String, Object> found = new LinkedHashMap<>();
    try {
      found.put("told", scenario.play(new Place(given, name)));
    } catch (Throwable error) {
      StringWriter text = new StringWriter();
      error.printStackTrace(new PrintWriter(text));
      found.put("error", text.toString());
    }
    found.put("took", (System.nanoTime() - began) / 1e9);
    return found;
  }

  private static Map<String, Object> outcome(Future<Map<String, Object>> one, long left) throws InterruptedException {
    try {
      return one.get(Math.max(left, 0), TimeUnit.NANOSECONDS);
    } catch (TimeoutException late) {
      return Map.of("error", "no end within the limit of the program");
    } catch (ExecutionException error) {
      return Map.of("error", error.toString());
    }
  }
}
