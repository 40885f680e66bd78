import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusProcessorClient;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessageContext;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;

/** The processor: what it hands out, at how many places, and what becomes of messages whose handler fails. */
final class Processors {
  static final Map<String, Scenarios.Scenario> ALL =
      Map.ofEntries(
          Map.entry("processor-at-a-time", Processors::atATime),
          Map.entry("processor-subscription", Processors::subscription),
          Map.entry("processor-handler-fails", Processors::handlerFails),
          Map.entry("processor-handler-always-fails", Processors::handlerAlwaysFails),
          Map.entry("processor-settles-itself", Processors::settlesItself),
          Map.entry("processor-stops-and-starts", Processors::stopsAndStarts),
          Map.entry("processor-missing-entity", Processors::missingEntity),
          Map.entry("processor-receive-and-delete", Processors::receiveAndDelete),
          Map.entry("processor-dead-letters", Processors::deadLetters),
          Map.entry("processor-many-sessions", Processors::manySessions),
          Map.entry("processor-idle-session", Processors::idleSession),
          Map.entry("processor-session-calls-at-a-time", Processors::sessionCallsAtATime),
          Map.entry("processor-session-subscription", Processors::sessionSubscription),
          Map.entry("processor-session-handler-fails", Processors::sessionHandlerFails));

  private Processors() {}

  /** What a processor saw. */
  private static final class Seen {
    final ConcurrentLinkedQueue<String> bodies = new ConcurrentLinkedQueue<>();
    final ConcurrentLinkedQueue<String> errors = new ConcurrentLinkedQueue<>();
    final AtomicInteger now = new AtomicInteger();
    final AtomicInteger most = new AtomicInteger();

    void saw(ServiceBusReceivedMessageContext context) {
      bodies.add(context.getMessage().getBody().toString());
    }

    boolean all(int number) throws InterruptedException {
      return Place.becomes(() -> bodies.size() >= number);
    }

    /** Hold on for a while, and count how many do so at the same time. */
    void stay(long milliseconds) {
      most.accumulateAndGet(now.incrementAndGet(), Math::max);
      try {
        Thread.sleep(milliseconds);
      } catch (InterruptedException error) {
        throw new IllegalStateException(error);
      } finally {
        now.decrementAndGet();
      }
    }
  }

  private static ServiceBusClientBuilder.ServiceBusProcessorClientBuilder processor(
      Place place, Seen seen, Consumer<ServiceBusReceivedMessageContext> handler) {
    return place
        .builder()
        .processor()
        .processMessage(handler)
        .processError(context -> seen.errors.add(context.getErrorSource() + " " + Place.reason(context.getException())));
  }

  private static ServiceBusClientBuilder.ServiceBusSessionProcessorClientBuilder sessions(
      Place place, Seen seen, Consumer<ServiceBusReceivedMessageContext> handler) {
    return place
        .builder()
        .sessionProcessor()
        .processMessage(handler)
        .processError(context -> seen.errors.add(context.getErrorSource() + " " + Place.reason(context.getException())));
  }

  private static Object atATime(Place place) throws Exception {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 12));
    Seen seen = new Seen();
    CountDownLatch together = new CountDownLatch(3);
    ServiceBusProcessorClient processor =
        processor(
                place,
                seen,
                context -> {
                  together.countDown();
                  try {
                    // Only three that run at the same time get past this.
                    together.await(Place.WAIT.toSeconds(), TimeUnit.SECONDS);
                  } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                  }
                  seen.stay(30);
                  seen.saw(context);
                })
            .queueName(queue)
            .maxConcurrentCalls(3)
            .prefetchCount(4)
            .buildProcessorClient();
    processor.start();
    boolean all = seen.all(12);
    boolean gone = Place.becomes(() -> place.held(queue).isEmpty());
    processor.close();
    return Place.told(
        "all", all, "gone", gone, "bodies", seen.bodies.stream().sorted().toList(), "most", seen.most.get(),
        "errors", List.copyOf(seen.errors));
  }

  private static Object subscription(Place place) throws Exception {
    String topic = place.topic("one", "two");
    Seen seen = new Seen();
    ConcurrentLinkedQueue<String> paths = new ConcurrentLinkedQueue<>();
    ServiceBusProcessorClient processor =
        processor(
                place,
                seen,
                context -> {
                  seen.saw(context);
                  paths.add(context.getEntityPath());
                })
            .topicName(topic)
            .subscriptionName("one")
            .buildProcessorClient();
    processor.start();
    place.sendToTopic(topic, Place.numbered("m", 3));
    boolean all = seen.all(3);
    boolean gone =
        Place.becomes(() -> place.admin.getSubscriptionRuntimeProperties(topic, "one").getTotalMessageCount() == 0);
    processor.close();
    long other = place.admin.getSubscriptionRuntimeProperties(topic, "two").getActiveMessageCount();
    return Place.told(
        "all", all, "gone", gone, "bodies", List.copyOf(seen.bodies), "path", paths.peek().replace(topic, "T"),
        "other", other, "errors", List.copyOf(seen.errors));
  }

  /** What a handler throws is told to the error handler, and the message comes again, counted. */
  private static Object handlerFails(Place place) throws Exception {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 2));
    Seen seen = new Seen();
    ConcurrentLinkedQueue<Long> counts = new ConcurrentLinkedQueue<>();
    ServiceBusProcessorClient processor =
        processor(
                place,
                seen,
                context -> {
                  ServiceBusReceivedMessage message = context.getMessage();
                  if (message.getBody().toString().equals("m0")) {
                    counts.add(message.getDeliveryCount());
                    if (message.getDeliveryCount() < 2) {
                      throw new IllegalArgumentException("not yet");
                    }
                  }
                  seen.saw(context);
                })
            .queueName(queue)
            .buildProcessorClient();
    processor.start();
    boolean all = seen.all(2);
    boolean gone = Place.becomes(() -> place.held(queue).isEmpty());
    processor.close();
    return Place.told(
        "all", all, "gone", gone, "bodies", seen.bodies.stream().sorted().toList(), "counts", List.copyOf(counts),
        "errors", List.copyOf(seen.errors));
  }

  private static Object handlerAlwaysFails(Place place) throws Exception {
    String queue = place.queue(new CreateQueueOptions().setMaxDeliveryCount(2));
    place.send(queue, Place.numbered("m", 1));
    Seen seen = new Seen();
    ServiceBusProcessorClient processor =
        processor(
                place,
                seen,
                context -> {
                  throw new IllegalArgumentException("never");
                })
            .queueName(queue)
            .buildProcessorClient();
    processor.start();
    boolean dead = Place.becomes(() -> !place.held(queue, SubQueue.DEAD_LETTER_QUEUE).isEmpty());
    processor.close();
    try (ServiceBusReceiverClient receiver =
        place.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient()) {
      ServiceBusReceivedMessage letter = Place.one(receiver);
      receiver.complete(letter);
      return Place.told("dead", dead, "reason", letter.getDeadLetterReason(), "errors", List.copyOf(seen.errors));
    }
  }

  /** Without automatic completion each message is what its handler made of it, and untouched where that did nothing. */
  private static Object settlesItself(Place place) throws Exception {
    String queue = place.queue();
    for (String body : List.of("completed", "dead", "deferred", "abandoned", "left")) {
      place.send(queue, new ServiceBusMessage(body));
    }
    Seen seen = new Seen();
    ServiceBusProcessorClient processor =
        processor(
                place,
                seen,
                context -> {
                  switch (context.getMessage().getBody().toString()) {
                    case "completed" -> context.complete();
                    case "dead" -> context.deadLetter(new DeadLetterOptions().setDeadLetterReason("by hand"));
                    case "deferred" -> context.defer();
                    case "abandoned" -> {
                      if (context.getMessage().getDeliveryCount() == 0) {
                        context.abandon();
                      } else {
                        context.complete();
                      }
                    }
                    default -> {}
                  }
                  seen.saw(context);
                })
            .queueName(queue)
            .disableAutoComplete()
            .buildProcessorClient();
    processor.start();
    boolean all = seen.all(6);
    boolean settled = Place.becomes(() -> place.held(queue).equals(List.of("deferred", "left")));
    List<String> dead = place.held(queue, SubQueue.DEAD_LETTER_QUEUE);
    processor.close();
    return Place.told(
        "all", all, "seen", seen.bodies.stream().sorted().toList(), "settled", settled, "dead", dead,
        "errors", List.copyOf(seen.errors));
  }

  private static Object stopsAndStarts(Place place) throws Exception {
    String queue = place.queue(new CreateQueueOptions().setLockDuration(Place.SHORT_LOCK));
    Seen seen = new Seen();
    ServiceBusProcessorClient processor =
        processor(place, seen, seen::saw).queueName(queue).buildProcessorClient();
    List<Boolean> running = new ArrayList<>(List.of(processor.isRunning()));
    processor.start();
    running.add(processor.isRunning());
    place.send(queue, new ServiceBusMessage("first"));
    boolean first = Place.becomes(() -> seen.bodies.contains("first")) && Place.becomes(() -> place.held(queue).isEmpty());
    processor.stop();
    running.add(processor.isRunning());
    // A stopped one may still have credit: then the message comes again when its lock ends.
    place.send(queue, new ServiceBusMessage("second"));
    Thread.sleep(Place.NOTHING.toMillis());
    List<String> meanwhile = List.copyOf(seen.bodies);
    processor.start();
    running.add(processor.isRunning());
    boolean second = Place.becomes(() -> seen.bodies.contains("second")) && Place.becomes(() -> place.held(queue).isEmpty());
    processor.close();
    running.add(processor.isRunning());
    // A closed one makes new clients when it is started.
    place.send(queue, new ServiceBusMessage("third"));
    processor.start();
    boolean third = Place.becomes(() -> seen.bodies.contains("third")) && Place.becomes(() -> place.held(queue).isEmpty());
    processor.close();
    return Place.told(
        "running", running, "first", first, "meanwhile", meanwhile, "second", second, "third", third,
        "bodies", seen.bodies.stream().distinct().toList());
  }

  private static Object missingEntity(Place place) throws Exception {
    Seen seen = new Seen();
    ServiceBusProcessorClient processor =
        place
            .builder()
            .retryOptions(new AmqpRetryOptions().setMaxRetries(0))
            .processor()
            .queueName(place.fresh())
            .processMessage(seen::saw)
            .processError(
                context -> seen.errors.add(context.getErrorSource() + " " + Place.reason(context.getException())))
            .buildProcessorClient();
    processor.start();
    boolean told = Place.becomes(() -> !seen.errors.isEmpty());
    String error = seen.errors.peek();
    processor.close();
    return Place.told("told", told, "error", error);
  }

  private static Object receiveAndDelete(Place place) throws Exception {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 3));
    Seen seen = new Seen();
    ServiceBusProcessorClient processor =
        processor(
                place,
                seen,
                context -> {
                  seen.saw(context);
                  throw new IllegalArgumentException("too late");
                })
            .queueName(queue)
            .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE)
            .buildProcessorClient();
    processor.start();
    boolean all = seen.all(3);
    boolean gone = Place.becomes(() -> place.held(queue).isEmpty());
    processor.close();
    List<String> dead = place.held(queue, SubQueue.DEAD_LETTER_QUEUE);
    return Place.told("all", all, "gone", gone, "bodies", List.copyOf(seen.bodies), "dead", dead);
  }

  private static Object deadLetters(Place place) throws Exception {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 2));
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(queue).buildClient()) {
      for (ServiceBusReceivedMessage message : Place.received(receiver, 2)) {
        receiver.deadLetter(message, new DeadLetterOptions().setDeadLetterReason("why " + message.getBody()));
      }
    }
    Seen seen = new Seen();
    ConcurrentLinkedQueue<String> reasons = new ConcurrentLinkedQueue<>();
    ServiceBusProcessorClient processor =
        processor(
                place,
                seen,
                context -> {
                  reasons.add(context.getMessage().getDeadLetterReason());
                  seen.saw(context);
                })
            .queueName(queue)
            .subQueue(SubQueue.DEAD_LETTER_QUEUE)
            .buildProcessorClient();
    processor.start();
    boolean all = seen.all(2);
    boolean gone = Place.becomes(() -> place.held(queue, SubQueue.DEAD_LETTER_QUEUE).isEmpty());
    processor.close();
    return Place.told("all", all, "gone", gone, "reasons", List.copyOf(reasons), "errors", List.copyOf(seen.errors));
  }

  /** Six sessions by turns at three places: each in its order, and no more than three at a time. */
  private static Object manySessions(Place place) throws Exception {
    String queue = place.sessionQueue();
    List<ServiceBusMessage> messages = new ArrayList<>();
    for (int number = 0; number < 4; number++) {
      for (int session = 0; session < 6; session++) {
        messages.add(Place.inSession("s" + session, Integer.toString(number)));
      }
    }
    place.send(queue, messages.toArray(ServiceBusMessage[]::new));
    Seen seen = new Seen();
    Map<String, List<String>> bySession = new ConcurrentHashMap<>();
    CountDownLatch together = new CountDownLatch(3);
    ServiceBusProcessorClient processor =
        sessions(
                place,
                seen,
                context -> {
                  ServiceBusReceivedMessage message = context.getMessage();
                  List<String> own = bySession.computeIfAbsent(message.getSessionId(), name -> new ArrayList<>());
                  own.add(message.getBody().toString());
                  together.countDown();
                  try {
                    together.await(Place.WAIT.toSeconds(), TimeUnit.SECONDS);
                  } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                  }
                  seen.stay(20);
                  seen.saw(context);
                })
            .queueName(queue)
            .maxConcurrentSessions(3)
            .sessionIdleTimeout(Duration.ofSeconds(1))
            .buildProcessorClient();
    processor.start();
    boolean all = seen.all(24);
    boolean gone = Place.becomes(() -> place.active(queue) == 0);
    processor.close();
    return Place.told("all", all, "gone", gone, "sessions", new TreeMap<>(bySession), "most", seen.most.get());
  }

  /** One place: the next session is taken when the one before has had nothing for the idle timeout. */
  private static Object idleSession(Place place) throws Exception {
    String queue = place.sessionQueue();
    place.send(queue, Place.inSession("a", "a0"), Place.inSession("a", "a1"));
    place.send(queue, Place.inSession("b", "b0"));
    Seen seen = new Seen();
    ServiceBusProcessorClient processor =
        sessions(place, seen, seen::saw)
            .queueName(queue)
            .maxConcurrentSessions(1)
            .sessionIdleTimeout(Duration.ofSeconds(1))
            .buildProcessorClient();
    processor.start();
    boolean all = seen.all(3);
    // Both sessions are idle now; what comes for the first is taken again.
    place.send(queue, Place.inSession("a", "a2"));
    boolean again = seen.all(4);
    boolean gone = Place.becomes(() -> place.active(queue) == 0);
    processor.close();
    return Place.told("all", all, "again", again, "gone", gone, "bodies", List.copyOf(seen.bodies));
  }

  private static Object sessionCallsAtATime(Place place) throws Exception {
    String queue = place.sessionQueue();
    List<ServiceBusMessage> messages = new ArrayList<>();
    for (int number = 0; number < 6; number++) {
      messages.add(Place.inSession("s", "m" + number));
    }
    place.send(queue, messages.toArray(ServiceBusMessage[]::new));
    Seen seen = new Seen();
    CountDownLatch together = new CountDownLatch(2);
    ServiceBusProcessorClient processor =
        sessions(
                place,
                seen,
                context -> {
                  together.countDown();
                  try {
                    together.await(Place.WAIT.toSeconds(), TimeUnit.SECONDS);
                  } catch (InterruptedException error) {
                    throw new IllegalStateException(error);
                  }
                  seen.stay(30);
                  seen.saw(context);
                })
            .queueName(queue)
            .maxConcurrentSessions(1)
            .maxConcurrentCalls(2)
            .buildProcessorClient();
    processor.start();
    boolean all = seen.all(6);
    boolean gone = Place.becomes(() -> place.active(queue) == 0);
    processor.close();
    return Place.told(
        "all", all, "gone", gone, "bodies", seen.bodies.stream().sorted().toList(), "most", seen.most.get());
  }

  private static Object sessionSubscription(Place place) throws Exception {
    String topic = place.topic();
    place.admin.createSubscription(topic, "s", new CreateSubscriptionOptions().setSessionRequired(true));
    Seen seen = new Seen();
    ServiceBusProcessorClient processor =
        sessions(
                place,
                seen,
                context -> {
                  context.complete();
                  seen.saw(context);
                })
            .topicName(topic)
            .subscriptionName("s")
            .disableAutoComplete()
            .maxConcurrentSessions(2)
            .buildProcessorClient();
    processor.start();
    place.sendToTopic(topic, Place.inSession("a", "a0"), Place.inSession("a", "a1"), Place.inSession("a", "a2"));
    boolean all = seen.all(3);
    boolean gone =
        Place.becomes(() -> place.admin.getSubscriptionRuntimeProperties(topic, "s").getTotalMessageCount() == 0);
    processor.close();
    return Place.told("all", all, "gone", gone, "bodies", List.copyOf(seen.bodies));
  }

  private static Object sessionHandlerFails(Place place) throws Exception {
    String queue = place.sessionQueue();
    place.send(queue, Place.inSession("s", "m0"), Place.inSession("s", "m1"));
    Seen seen = new Seen();
    ConcurrentLinkedQueue<Long> counts = new ConcurrentLinkedQueue<>();
    ServiceBusProcessorClient processor =
        sessions(
                place,
                seen,
                context -> {
                  ServiceBusReceivedMessage message = context.getMessage();
                  if (message.getBody().toString().equals("m0")) {
                    counts.add(message.getDeliveryCount());
                    if (message.getDeliveryCount() == 0) {
                      throw new IllegalArgumentException("not yet");
                    }
                  }
                  seen.saw(context);
                })
            .queueName(queue)
            .maxConcurrentSessions(1)
            .buildProcessorClient();
    processor.start();
    boolean all = seen.all(2);
    boolean gone = Place.becomes(() -> place.active(queue) == 0);
    List<String> errors = List.copyOf(seen.errors);
    processor.close();
    return Place.told(
        "all", all, "gone", gone, "bodies", seen.bodies.stream().sorted().toList(), "counts", List.copyOf(counts),
        "errors", errors);
  }
}
