import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusProcessorClient;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverAsyncClient;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import reactor.core.publisher.Mono;

/** What waits for locks to end, or keeps them from ending, and for times to live. */
final class Locks {
  /** Some time after a short lock would have ended. */
  private static final long BEYOND_MS = Place.SHORT_LOCK.toMillis() + 1500;
  private static final Duration LONG = Duration.ofSeconds(30);

  static final Map<String, Scenarios.Scenario> ALL =
      Map.ofEntries(
          Map.entry("lock-renewed-for-a-while", Locks::renewedForAWhile),
          Map.entry("lock-lost", Locks::lost),
          Map.entry("lock-renewed-by-async-receiver", Locks::renewedByAsyncReceiver),
          Map.entry("lock-renewed-by-processor", Locks::renewedByProcessor),
          Map.entry("session-lock-renewed-for-a-while", Locks::sessionRenewedForAWhile),
          Map.entry("session-lock-lost", Locks::sessionLost),
          Map.entry("session-lock-renewed-by-processor", Locks::sessionRenewedByProcessor),
          Map.entry("time-to-live", Locks::timeToLive));

  private Locks() {}

  private static String queue(Place place, boolean sessions) {
    return place.queue(new CreateQueueOptions().setLockDuration(Place.SHORT_LOCK).setSessionRequired(sessions));
  }

  /** Each call moves the end of the lock; the task of the client does so until it is told to end. */
  private static Object renewedForAWhile(Place place) throws Exception {
    String queue = queue(place, false);
    place.send(queue, Place.numbered("m", 2));
    ConcurrentLinkedQueue<Throwable> errors = new ConcurrentLinkedQueue<>();
    try (ServiceBusReceiverClient receiver =
        place.builder().receiver().queueName(queue).maxAutoLockRenewDuration(Duration.ZERO).buildClient()) {
      List<ServiceBusReceivedMessage> messages = Place.received(receiver, 2);
      OffsetDateTime before = messages.get(0).getLockedUntil();
      Thread.sleep(50);
      boolean moved = receiver.renewMessageLock(messages.get(0)).isAfter(before);
      receiver.complete(messages.get(0));
      receiver.renewMessageLock(messages.get(1), LONG, errors::add);
      Thread.sleep(BEYOND_MS);
      receiver.complete(messages.get(1));
      return Place.told("moved", moved, "errors", errors.size(), "left", Place.held(receiver));
    }
  }

  private static Object lost(Place place) throws Exception {
    String queue = queue(place, false);
    place.send(queue, Place.numbered("m", 1));
    ServiceBusClientBuilder once = place.builder().retryOptions(new AmqpRetryOptions().setMaxRetries(0));
    try (ServiceBusReceiverClient receiver =
            once.receiver().queueName(queue).maxAutoLockRenewDuration(Duration.ZERO).buildClient();
        ServiceBusReceiverClient other = place.builder().receiver().queueName(queue).buildClient()) {
      ServiceBusReceivedMessage late = Place.one(receiver);
      Thread.sleep(BEYOND_MS);
      // Nobody else has it meanwhile: a settlement on the receiver's own link goes by the lock alone.
      String completed = Place.refusal(() -> receiver.complete(late));
      String renewed = Place.refusal(() -> receiver.renewMessageLock(late));
      ServiceBusReceivedMessage again = Place.one(other);
      other.complete(again);
      return Place.told("completed", completed, "renewed", renewed, "again", again.getDeliveryCount());
    }
  }

  private static Object renewedByAsyncReceiver(Place place) throws Exception {
    String queue = queue(place, false);
    place.send(queue, Place.numbered("m", 1));
    try (ServiceBusReceiverAsyncClient receiver =
        place.builder().receiver().queueName(queue).disableAutoComplete().maxAutoLockRenewDuration(LONG).buildAsyncClient()) {
      ConcurrentLinkedQueue<String> seen = new ConcurrentLinkedQueue<>();
      receiver
          .receiveMessages()
          .concatMap(
              message -> {
                seen.add(message.getBody() + " " + message.getDeliveryCount());
                return Mono.delay(Duration.ofMillis(BEYOND_MS)).then(receiver.complete(message)).thenReturn(1);
              })
          .take(1)
          .blockLast(LONG);
      return Place.told("seen", List.copyOf(seen), "left", place.held(queue));
    }
  }

  private static Object renewedByProcessor(Place place) throws Exception {
    String queue = queue(place, false);
    place.send(queue, Place.numbered("m", 1));
    CountDownLatch done = new CountDownLatch(1);
    AtomicInteger calls = new AtomicInteger();
    ConcurrentLinkedQueue<String> errors = new ConcurrentLinkedQueue<>();
    ServiceBusProcessorClient processor =
        place
            .builder()
            .processor()
            .queueName(queue)
            .maxAutoLockRenewDuration(LONG)
            .processMessage(
                context -> {
                  calls.incrementAndGet();
                  sleep(BEYOND_MS);
                  done.countDown();
                })
            .processError(context -> errors.add(context.getException().toString()))
            .buildProcessorClient();
    processor.start();
    boolean ended = done.await(LONG.toSeconds(), TimeUnit.SECONDS);
    boolean gone = Place.becomes(() -> place.held(queue).isEmpty());
    processor.close();
    return Place.told("ended", ended, "gone", gone, "calls", calls.get(), "errors", List.copyOf(errors));
  }

  private static Object sessionRenewedForAWhile(Place place) throws Exception {
    String queue = queue(place, true);
    place.send(queue, Place.inSession("s", "m"));
    ConcurrentLinkedQueue<Throwable> errors = new ConcurrentLinkedQueue<>();
    try (ServiceBusSessionReceiverClient accepting =
            place.builder().sessionReceiver().queueName(queue).maxAutoLockRenewDuration(Duration.ZERO).buildClient();
        ServiceBusReceiverClient receiver = accepting.acceptSession("s")) {
      OffsetDateTime until = receiver.renewSessionLock();
      boolean ahead = until.isAfter(OffsetDateTime.now().plusSeconds(3));
      receiver.renewSessionLock(LONG, errors::add);
      ServiceBusReceivedMessage message = Place.one(receiver);
      Thread.sleep(BEYOND_MS);
      receiver.setSessionState("kept".getBytes());
      receiver.complete(message);
      return Place.told("ahead", ahead, "errors", errors.size(), "state", new String(receiver.getSessionState()));
    }
  }

  private static Object sessionLost(Place place) throws Exception {
    String queue = queue(place, true);
    place.send(queue, Place.inSession("s", "m"));
    ServiceBusClientBuilder once = place.builder().retryOptions(new AmqpRetryOptions().setMaxRetries(0));
    try (ServiceBusSessionReceiverClient accepting =
            once.sessionReceiver().queueName(queue).maxAutoLockRenewDuration(Duration.ZERO).buildClient();
        ServiceBusReceiverClient receiver = accepting.acceptNextSession()) {
      Place.one(receiver);
      Thread.sleep(BEYOND_MS);
      String state = Place.refusal(() -> receiver.setSessionState("late".getBytes()));
      String renewed = Place.refusal(receiver::renewSessionLock);
      try (ServiceBusSessionReceiverClient others = place.builder().sessionReceiver().queueName(queue).buildClient();
          ServiceBusReceiverClient other = others.acceptSession("s")) {
        ServiceBusReceivedMessage again = Place.one(other);
        other.complete(again);
        byte[] kept = other.getSessionState();
        return Place.told("state", state, "renewed", renewed, "again", again.getBody().toString(), "kept", kept == null);
      }
    }
  }

  private static Object sessionRenewedByProcessor(Place place) throws Exception {
    String queue = queue(place, true);
    place.send(queue, Place.inSession("s", "m"));
    CountDownLatch done = new CountDownLatch(1);
    AtomicInteger calls = new AtomicInteger();
    ConcurrentLinkedQueue<String> errors = new ConcurrentLinkedQueue<>();
    ServiceBusProcessorClient processor =
        place
            .builder()
            .sessionProcessor()
            .queueName(queue)
            .maxAutoLockRenewDuration(LONG)
            .processMessage(
                context -> {
                  calls.incrementAndGet();
                  sleep(BEYOND_MS);
                  done.countDown();
                })
            .processError(context -> errors.add(context.getException().toString()))
            .buildProcessorClient();
    processor.start();
    boolean ended = done.await(LONG.toSeconds(), TimeUnit.SECONDS);
    boolean gone = Place.becomes(() -> place.active(queue) == 0);
    List<String> before = List.copyOf(errors);
    processor.close();
    return Place.told("ended", ended, "gone", gone, "calls", calls.get(), "errors", before);
  }

  /** A message's own time, a queue's, and where a message goes whose time is over. */
  private static Object timeToLive(Place place) throws Exception {
    Duration brief = Duration.ofSeconds(1);
    String kept = place.queue(new CreateQueueOptions().setDeadLetteringOnMessageExpiration(true));
    String gone = place.queue(new CreateQueueOptions().setDefaultMessageTimeToLive(brief));
    ServiceBusMessage lasting = new ServiceBusMessage("lasting").setTimeToLive(Duration.ofHours(1));
    place.send(kept, new ServiceBusMessage("brief").setTimeToLive(brief), lasting);
    place.send(gone, new ServiceBusMessage("m").setTimeToLive(Duration.ofDays(1)));
    boolean moved = Place.becomes(() -> place.held(kept, SubQueue.DEAD_LETTER_QUEUE).equals(List.of("brief")));
    boolean empty = Place.becomes(() -> place.held(gone).isEmpty());
    try (ServiceBusReceiverClient dead =
            place.builder().receiver().queueName(kept).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient();
        ServiceBusReceiverClient receiver = place.builder().receiver().queueName(kept).buildClient()) {
      ServiceBusReceivedMessage letter = Place.one(dead);
      dead.complete(letter);
      ServiceBusReceivedMessage left = Place.one(receiver);
      Duration life = Duration.between(left.getEnqueuedTime(), left.getExpiresAt());
      receiver.complete(left);
      return Place.told(
          "moved", moved, "empty", empty, "reason", letter.getDeadLetterReason(),
          "left", left.getBody().toString(), "life", left.getTimeToLive().toString(), "expires", life.toString());
    }
  }

  private static void sleep(long milliseconds) {
    try {
      Thread.sleep(milliseconds);
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }
}
