import com.azure.core.amqp.models.AmqpAddress;
import com.azure.core.amqp.models.AmqpAnnotatedMessage;
import com.azure.core.amqp.models.AmqpMessageBody;
import com.azure.core.amqp.models.AmqpMessageId;
import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverAsyncClient;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderAsyncClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.models.AbandonOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.CreateMessageBatchOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.DeferOptions;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.ConcurrentLinkedQueue;

/** Senders and receivers, synchronous and asynchronous. */
final class Messages {
  static final Map<String, Scenarios.Scenario> ALL =
      Map.ofEntries(
          Map.entry("async-send-and-settle", Messages::asyncSendAndSettle),
          Map.entry("async-auto-complete", Messages::asyncAutoComplete),
          Map.entry("async-subscription", Messages::asyncSubscription),
          Map.entry("async-scheduled", Messages::asyncScheduled),
          Map.entry("async-deferred", Messages::asyncDeferred),
          Map.entry("async-transactions", Messages::asyncTransactions),
          Map.entry("batch-until-full", Messages::batchUntilFull),
          Map.entry("scheduled-lists", Messages::scheduledLists),
          Map.entry("scheduled-arrives", Messages::scheduledArrives),
          Map.entry("peeking", Messages::peeking),
          Map.entry("deferred-list", Messages::deferredList),
          Map.entry("properties-to-modify", Messages::propertiesToModify),
          Map.entry("delivery-count-ends", Messages::deliveryCountEnds),
          Map.entry("transactions", Messages::transactions),
          Map.entry("cross-entity-transactions", Messages::crossEntity),
          Map.entry("receive-and-delete", Messages::receiveAndDelete),
          Map.entry("sub-queues", Messages::subQueues),
          Map.entry("body-types", Messages::bodyTypes),
          Map.entry("annotated", Messages::annotated),
          Map.entry("properties", Messages::properties),
          Map.entry("sent-again", Messages::sentAgain),
          Map.entry("duplicates", Messages::duplicates),
          Map.entry("nothing-comes", Messages::nothingComes));

  private Messages() {}

  private static List<String> completed(ServiceBusReceiverAsyncClient receiver, int number) {
    return receiver
        .receiveMessages()
        .concatMap(message -> receiver.complete(message).thenReturn(message.getBody().toString()))
        .take(number)
        .collectList()
        .block(Place.WAIT);
  }

  /** One, a list, and a batch; then every way to settle. */
  private static Object asyncSendAndSettle(Place place) {
    String queue = place.queue();
    ServiceBusClientBuilder builder = place.builder();
    try (ServiceBusSenderAsyncClient sender = builder.sender().queueName(queue).buildAsyncClient();
        ServiceBusReceiverAsyncClient receiver =
            builder.receiver().queueName(queue).disableAutoComplete().buildAsyncClient()) {
      sender.sendMessage(new ServiceBusMessage("completed")).block(Place.WAIT);
      sender.sendMessages(List.of(new ServiceBusMessage("dead"), new ServiceBusMessage("deferred"))).block(Place.WAIT);
      ServiceBusMessageBatch batch = sender.createMessageBatch().block(Place.WAIT);
      batch.tryAddMessage(new ServiceBusMessage("abandoned"));
      sender.sendMessages(batch).block(Place.WAIT);
      List<String> seen =
          receiver
              .receiveMessages()
              .concatMap(
                  message -> {
                    String body = message.getBody().toString();
                    return (switch (body) {
                          case "dead" ->
                              receiver.deadLetter(message, new DeadLetterOptions().setDeadLetterReason("why"));
                          case "deferred" -> receiver.defer(message);
                          case "abandoned" ->
                              message.getDeliveryCount() == 0 ? receiver.abandon(message) : receiver.complete(message);
                          default -> receiver.complete(message);
                        })
                        .thenReturn(body + " " + message.getDeliveryCount());
                  })
              .take(5)
              .collectList()
              .block(Place.WAIT);
      return Place.told(
          "seen", seen, "left", place.held(queue), "dead", place.held(queue, SubQueue.DEAD_LETTER_QUEUE));
    }
  }

  /** Left as it is, the asynchronous receiver completes what its subscriber took without an error. */
  private static Object asyncAutoComplete(Place place) throws Exception {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 3));
    try (ServiceBusReceiverAsyncClient receiver = place.builder().receiver().queueName(queue).buildAsyncClient()) {
      List<String> bodies = new ArrayList<>();
      var running = receiver.receiveMessages().subscribe(message -> bodies.add(message.getBody().toString()));
      boolean gone = Place.becomes(() -> place.held(queue).isEmpty());
      running.dispose();
      return Place.told("gone", gone, "bodies", bodies);
    }
  }

  private static Object asyncSubscription(Place place) {
    String topic = place.topic("one", "two");
    ServiceBusClientBuilder builder = place.builder();
    try (ServiceBusSenderAsyncClient sender = builder.sender().topicName(topic).buildAsyncClient()) {
      sender.sendMessages(Arrays.asList(Place.numbered("m", 3))).block(Place.WAIT);
    }
    Map<String, Object> found = new TreeMap<>();
    for (String name : List.of("one", "two")) {
      try (ServiceBusReceiverAsyncClient receiver =
          builder.receiver().topicName(topic).subscriptionName(name).disableAutoComplete().buildAsyncClient()) {
        List<String> peeked = receiver.peekMessages(5).map(m -> m.getBody().toString()).collectList().block(Place.WAIT);
        found.put(name, List.of(peeked, completed(receiver, 3)));
      }
    }
    return found;
  }

  private static Object asyncScheduled(Place place) {
    String queue = place.queue();
    ServiceBusClientBuilder builder = place.builder();
    OffsetDateTime later = OffsetDateTime.now().plusHours(1);
    try (ServiceBusSenderAsyncClient sender = builder.sender().queueName(queue).buildAsyncClient();
        ServiceBusReceiverAsyncClient receiver = builder.receiver().queueName(queue).buildAsyncClient()) {
      Long one = sender.scheduleMessage(new ServiceBusMessage("one"), later).block(Place.WAIT);
      List<Long> more =
          sender.scheduleMessages(Arrays.asList(Place.numbered("m", 3)), later).collectList().block(Place.WAIT);
      List<ServiceBusReceivedMessage> peeked = receiver.peekMessages(10).collectList().block(Place.WAIT);
      boolean same = Place.numbers(peeked).equals(List.of(one, more.get(0), more.get(1), more.get(2)));
      sender.cancelScheduledMessage(more.get(1)).block(Place.WAIT);
      List<String> left = place.held(queue);
      sender.cancelScheduledMessages(List.of(one, more.get(0), more.get(2))).block(Place.WAIT);
      return Place.told("same", same, "state", peeked.get(0).getState().toString(), "left", left, "end", place.held(queue));
    }
  }

  private static Object asyncDeferred(Place place) {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 3));
    try (ServiceBusReceiverAsyncClient receiver =
        place.builder().receiver().queueName(queue).disableAutoComplete().buildAsyncClient()) {
      List<Long> numbers =
          receiver
              .receiveMessages()
              .concatMap(message -> receiver.defer(message).thenReturn(message.getSequenceNumber()))
              .take(3)
              .collectList()
              .block(Place.WAIT);
      ServiceBusReceivedMessage one = receiver.receiveDeferredMessage(numbers.get(0)).block(Place.WAIT);
      OffsetDateTime until = receiver.renewMessageLock(one).block(Place.WAIT);
      receiver.complete(one).block(Place.WAIT);
      List<String> others =
          receiver
              .receiveDeferredMessages(numbers.subList(1, 3))
              .concatMap(message -> receiver.deadLetter(message).thenReturn(message.getBody().toString()))
              .collectList()
              .block(Place.WAIT);
      String gone = Place.refusal(() -> receiver.receiveDeferredMessage(numbers.get(0)).block(Place.WAIT));
      return Place.told(
          "one", one.getBody().toString(), "renewed", until.isAfter(OffsetDateTime.now()), "others", others,
          "gone", gone, "left", place.held(queue), "dead", place.held(queue, SubQueue.DEAD_LETTER_QUEUE));
    }
  }

  private static Object asyncTransactions(Place place) throws Exception {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 2));
    ServiceBusClientBuilder builder = place.builder();
    try (ServiceBusSenderAsyncClient sender = builder.sender().queueName(queue).buildAsyncClient();
        ServiceBusReceiverAsyncClient receiver =
            builder.receiver().queueName(queue).disableAutoComplete().buildAsyncClient()) {
      ConcurrentLinkedQueue<ServiceBusReceivedMessage> messages = new ConcurrentLinkedQueue<>();
      var running = receiver.receiveMessages().subscribe(messages::add);
      boolean came = Place.becomes(() -> messages.size() == 2);
      ServiceBusTransactionContext undone = sender.createTransaction().block(Place.WAIT);
      sender.sendMessages(Arrays.asList(Place.numbered("never", 2)), undone).block(Place.WAIT);
      receiver.complete(messages.poll(), new CompleteOptions().setTransactionContext(undone)).block(Place.WAIT);
      sender.rollbackTransaction(undone).block(Place.WAIT);
      List<String> after = place.held(queue);
      ServiceBusTransactionContext kept = receiver.createTransaction().block(Place.WAIT);
      sender.sendMessages(Arrays.asList(Place.numbered("kept", 2)), kept).block(Place.WAIT);
      receiver.complete(messages.poll(), new CompleteOptions().setTransactionContext(kept)).block(Place.WAIT);
      receiver.commitTransaction(kept).block(Place.WAIT);
      running.dispose();
      return Place.told("came", came, "rolled back", after, "committed", place.held(queue));
    }
  }

  /** A batch says itself when it is full; one of a given size is full earlier; one of too much is refused. */
  private static Object batchUntilFull(Place place) {
    String queue = place.queue();
    byte[] kibibyte = new byte[1024];
    try (ServiceBusSenderClient sender = place.builder().sender().queueName(queue).buildClient()) {
      ServiceBusMessageBatch small = sender.createMessageBatch(new CreateMessageBatchOptions().setMaximumSizeInBytes(4096));
      while (small.tryAddMessage(new ServiceBusMessage(BinaryData.fromBytes(kibibyte)))) {}
      ServiceBusMessageBatch whole = sender.createMessageBatch();
      while (whole.tryAddMessage(new ServiceBusMessage(BinaryData.fromBytes(kibibyte)))) {}
      int number = small.getCount() + whole.getCount();
      sender.sendMessages(small);
      sender.sendMessages(whole);
      String larger =
          Place.refusal(() -> sender.createMessageBatch(new CreateMessageBatchOptions().setMaximumSizeInBytes(1 << 30)));
      return Place.told(
          "small", small.getCount(), "many", whole.getCount() > 200, "all", place.active(queue) == number, "larger", larger);
    }
  }

  private static Object scheduledLists(Place place) {
    String queue = place.queue();
    ServiceBusClientBuilder builder = place.builder();
    OffsetDateTime later = OffsetDateTime.now().plusHours(1);
    try (ServiceBusSenderClient sender = builder.sender().queueName(queue).buildClient();
        ServiceBusReceiverClient receiver = builder.receiver().queueName(queue).buildClient()) {
      List<Long> numbers = new ArrayList<>();
      sender.scheduleMessages(Arrays.asList(Place.numbered("m", 4)), later).forEach(numbers::add);
      List<ServiceBusReceivedMessage> peeked = receiver.peekMessages(10, 0).stream().toList();
      boolean same = Place.numbers(peeked).equals(numbers);
      boolean told = peeked.stream().allMatch(m -> m.getScheduledEnqueueTime().toEpochSecond() == later.toEpochSecond());
      sender.cancelScheduledMessages(numbers.subList(0, 2));
      List<String> left = Place.held(receiver);
      sender.cancelScheduledMessage(numbers.get(2));
      sender.cancelScheduledMessage(numbers.get(3));
      String twice = Place.refusal(() -> sender.cancelScheduledMessage(numbers.get(3)));
      return Place.told("same", same, "told", told, "left", left, "end", Place.held(receiver), "twice", twice);
    }
  }

  /** By the operation, and by the property of a message that is sent as others are. */
  private static Object scheduledArrives(Place place) {
    String queue = place.queue();
    ServiceBusClientBuilder builder = place.builder();
    try (ServiceBusSenderClient sender = builder.sender().queueName(queue).buildClient();
        ServiceBusReceiverClient receiver = builder.receiver().queueName(queue).buildClient()) {
      OffsetDateTime soon = OffsetDateTime.now().plusSeconds(1);
      sender.scheduleMessage(new ServiceBusMessage("by operation"), soon);
      sender.sendMessage(new ServiceBusMessage("by property").setScheduledEnqueueTime(soon.plusNanos(500_000_000)));
      List<ServiceBusReceivedMessage> messages = Place.received(receiver, 2);
      messages.forEach(receiver::complete);
      // The wire has milliseconds.
      boolean early = messages.stream().anyMatch(m -> m.getEnqueuedTime().isBefore(soon.minusNanos(1_000_000)));
      return Place.told("bodies", Place.bodies(messages), "early", early, "state", messages.get(0).getState().toString());
    }
  }

  /** Peeks go on where the last one ended, start at a number, change nothing, and see what is locked. */
  private static Object peeking(Place place) {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 4));
    ServiceBusClientBuilder builder = place.builder();
    try (ServiceBusReceiverClient receiver = builder.receiver().queueName(queue).buildClient()) {
      ServiceBusReceivedMessage first = receiver.peekMessage();
      List<String> two = Place.bodies(receiver.peekMessages(2));
      ServiceBusReceivedMessage last = receiver.peekMessage();
      ServiceBusReceivedMessage none = receiver.peekMessage();
      ServiceBusReceivedMessage locked = Place.one(receiver);
      List<String> from = Place.bodies(receiver.peekMessages(10, first.getSequenceNumber()));
      String one = receiver.peekMessage(last.getSequenceNumber()).getBody().toString();
      receiver.complete(locked);
      return Place.told(
          "first", first.getBody().toString(), "two", two, "last", last.getBody().toString(), "none", none == null,
          "counted", locked.getDeliveryCount(), "from", from, "one", one, "left", Place.held(receiver));
    }
  }

  private static Object deferredList(Place place) {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 4));
    ServiceBusClientBuilder builder = place.builder();
    try (ServiceBusReceiverClient receiver = builder.receiver().queueName(queue).buildClient();
        ServiceBusReceiverClient other = builder.receiver().queueName(queue).buildClient()) {
      List<ServiceBusReceivedMessage> messages = Place.received(receiver, 4);
      messages.forEach(receiver::defer);
      List<Long> numbers = Place.numbers(messages);
      List<ServiceBusReceivedMessage> back = new ArrayList<>();
      // Any receiver may ask for them.
      other.receiveDeferredMessageBatch(numbers).forEach(back::add);
      other.complete(back.get(0));
      other.abandon(back.get(1));
      other.deadLetter(back.get(2));
      other.defer(back.get(3));
      // Whatever was given back is still deferred.
      List<String> states = new ArrayList<>();
      receiver.peekMessages(10, 0).forEach(m -> states.add(m.getBody() + " " + m.getState() + " " + m.getDeliveryCount()));
      return Place.told(
          "back", Place.bodies(back), "states", states, "dead", place.held(queue, SubQueue.DEAD_LETTER_QUEUE),
          "gone", Place.refusal(() -> receiver.receiveDeferredMessage(numbers.get(0))));
    }
  }

  private static Object propertiesToModify(Place place) {
    String queue = place.queue();
    ServiceBusMessage message = new ServiceBusMessage("m");
    message.getApplicationProperties().put("kept", "as it was");
    message.getApplicationProperties().put("changed", 1);
    place.send(queue, message);
    List<Object> found = new ArrayList<>();
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(queue).buildClient();
        ServiceBusReceiverClient dead =
            place.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient()) {
      receiver.abandon(Place.one(receiver), new AbandonOptions().setPropertiesToModify(Map.of("changed", 2, "new", "n")));
      ServiceBusReceivedMessage again = Place.one(receiver);
      found.add(new TreeMap<>(again.getApplicationProperties()));
      receiver.defer(again, new DeferOptions().setPropertiesToModify(Map.of("changed", 3)));
      ServiceBusReceivedMessage deferred = receiver.receiveDeferredMessage(again.getSequenceNumber());
      found.add(new TreeMap<>(deferred.getApplicationProperties()));
      DeadLetterOptions why = new DeadLetterOptions().setDeadLetterReason("a reason");
      why.setDeadLetterErrorDescription("in detail").setPropertiesToModify(Map.of("changed", 4));
      receiver.deadLetter(deferred, why);
      ServiceBusReceivedMessage letter = Place.one(dead);
      found.add(new TreeMap<>(letter.getApplicationProperties()));
      found.add(List.of(letter.getDeadLetterReason(), letter.getDeadLetterErrorDescription()));
      dead.complete(letter);
    }
    return found;
  }

  private static Object deliveryCountEnds(Place place) {
    String queue = place.queue(new CreateQueueOptions().setMaxDeliveryCount(3));
    place.send(queue, Place.numbered("m", 1));
    List<Long> counts = new ArrayList<>();
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(queue).buildClient();
        ServiceBusReceiverClient dead =
            place.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient()) {
      for (int number = 0; number < 3; number++) {
        ServiceBusReceivedMessage message = Place.one(receiver);
        counts.add(message.getDeliveryCount());
        receiver.abandon(message);
      }
      ServiceBusReceivedMessage letter = Place.one(dead);
      dead.complete(letter);
      return Place.told("counts", counts, "reason", letter.getDeadLetterReason(), "left", Place.held(receiver));
    }
  }

  /** Every way to settle, a send and a schedule, in transactions that are rolled back, and then committed. */
  private static Object transactions(Place place) {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 8));
    ServiceBusClientBuilder builder = place.builder();
    try (ServiceBusSenderClient sender = builder.sender().queueName(queue).buildClient();
        ServiceBusReceiverClient receiver = builder.receiver().queueName(queue).buildClient()) {
      List<ServiceBusReceivedMessage> messages = Place.received(receiver, 8);
      Map<String, Object> found = new LinkedHashMap<>();
      for (boolean commits : new boolean[] {false, true}) {
        // The client takes a message that it settled for settled, though the transaction was rolled back.
        int first = commits ? 4 : 0;
        ServiceBusTransactionContext one = receiver.createTransaction();
        sender.sendMessage(new ServiceBusMessage("sent"), one);
        sender.scheduleMessage(new ServiceBusMessage("scheduled"), OffsetDateTime.now().plusHours(1), one);
        receiver.complete(messages.get(first), new CompleteOptions().setTransactionContext(one));
        receiver.defer(messages.get(first + 1), new DeferOptions().setTransactionContext(one));
        receiver.deadLetter(messages.get(first + 2), new DeadLetterOptions().setTransactionContext(one));
        receiver.abandon(messages.get(first + 3), new AbandonOptions().setTransactionContext(one));
        if (commits) {
          receiver.commitTransaction(one);
        } else {
          receiver.rollbackTransaction(one);
        }
        List<String> states = new ArrayList<>();
        receiver.peekMessages(20, 0).forEach(m -> states.add(m.getBody() + " " + m.getState() + " " + m.getDeliveryCount()));
        states.sort(null);
        found.put(commits ? "committed" : "rolled back", states);
        found.put(commits ? "dead after" : "dead before", place.held(queue, SubQueue.DEAD_LETTER_QUEUE));
      }
      return found;
    }
  }

  /** What is taken from one queue and sent to another, of one transaction. */
  private static Object crossEntity(Place place) {
    String from = place.queue();
    String to = place.queue();
    place.send(from, Place.numbered("m", 2));
    ServiceBusClientBuilder builder = place.builder().enableCrossEntityTransactions();
    try (ServiceBusReceiverClient receiver = builder.receiver().queueName(from).buildClient();
        ServiceBusSenderClient sender = builder.sender().queueName(to).buildClient()) {
      List<ServiceBusReceivedMessage> messages = Place.received(receiver, 2);
      List<Object> found = new ArrayList<>();
      for (boolean commits : new boolean[] {false, true}) {
        ServiceBusTransactionContext one = receiver.createTransaction();
        receiver.complete(messages.get(commits ? 1 : 0), new CompleteOptions().setTransactionContext(one));
        sender.sendMessage(new ServiceBusMessage("moved"), one);
        if (commits) {
          receiver.commitTransaction(one);
          // It is handed over after the commit.
          found.add(Place.becomes(() -> place.held(to).equals(List.of("moved"))));
        } else {
          receiver.rollbackTransaction(one);
        }
        found.add(List.of(place.held(from), place.held(to)));
      }
      return found;
    } catch (InterruptedException error) {
      throw new IllegalStateException(error);
    }
  }

  private static Object receiveAndDelete(Place place) {
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 3));
    try (ServiceBusReceiverClient receiver =
        place.builder().receiver().queueName(queue).receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE).buildClient()) {
      List<ServiceBusReceivedMessage> messages = Place.received(receiver, 3);
      String settled = Place.refusal(() -> receiver.complete(messages.get(0)));
      return Place.told("bodies", Place.bodies(messages), "settled", settled, "left", Place.held(receiver));
    }
  }

  /** The dead-letter queue as a queue: peeked, deferred there, given back, completed; of a subscription, too. */
  private static Object subQueues(Place place) {
    String queue = place.queue();
    String topic = place.topic("s");
    place.send(queue, Place.numbered("q", 2));
    place.sendToTopic(topic, Place.numbered("t", 1));
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(queue).buildClient();
        ServiceBusReceiverClient other =
            place.builder().receiver().topicName(topic).subscriptionName("s").buildClient()) {
      Place.received(receiver, 2).forEach(receiver::deadLetter);
      other.deadLetter(Place.one(other));
    }
    try (ServiceBusReceiverClient dead =
            place.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient();
        ServiceBusReceiverClient other =
            place.builder().receiver().topicName(topic).subscriptionName("s").subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient()) {
      List<String> peeked = Place.held(dead);
      ServiceBusReceivedMessage first = Place.one(dead);
      dead.defer(first);
      ServiceBusReceivedMessage second = Place.one(dead);
      dead.abandon(second);
      ServiceBusReceivedMessage again = Place.one(dead);
      dead.complete(again);
      ServiceBusReceivedMessage back = dead.receiveDeferredMessage(first.getSequenceNumber());
      dead.complete(back);
      ServiceBusReceivedMessage letter = Place.one(other);
      other.complete(letter);
      return Place.told(
          "peeked", peeked, "again", again.getBody().toString(), "back", back.getBody().toString(),
          "left", Place.held(dead), "other", letter.getBody().toString(), "other left", Place.held(other),
          "transfer", place.held(queue, SubQueue.TRANSFER_DEAD_LETTER_QUEUE));
    }
  }

  private static Object bodyTypes(Place place) {
    String queue = place.queue();
    UUID id = UUID.fromString("00112233-4455-6677-8899-aabbccddeeff");
    List<AmqpMessageBody> sent = new ArrayList<>();
    List<Object> values = List.of("text", 7, 7_000_000_000L, 1.5, true, id, Map.of("key", "value"), List.of("a", 2));
    values.forEach(value -> sent.add(AmqpMessageBody.fromValue(value)));
    sent.add(AmqpMessageBody.fromSequence(List.of("one", 2, 3L)));
    sent.add(AmqpMessageBody.fromData(new byte[] {0, 1, 2}));
    place.send(queue, sent.stream().map(ServiceBusMessage::new).toArray(ServiceBusMessage[]::new));
    List<String> found = new ArrayList<>();
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(queue).buildClient()) {
      for (ServiceBusReceivedMessage message : Place.received(receiver, sent.size())) {
        AmqpMessageBody body = message.getRawAmqpMessage().getBody();
        found.add(
            switch (body.getBodyType()) {
              case VALUE -> "value " + body.getValue().getClass().getSimpleName() + " " + body.getValue();
              case SEQUENCE -> "sequence " + body.getSequence();
              default -> "data " + Arrays.toString(body.getFirstData());
            });
        receiver.complete(message);
      }
    }
    return found;
  }

  /** Every section of a message, there and back. */
  private static Object annotated(Place place) {
    String queue = place.queue();
    ServiceBusMessage sent = new ServiceBusMessage("body");
    AmqpAnnotatedMessage raw = sent.getRawAmqpMessage();
    raw.getHeader().setDurable(true).setPriority((short) 7).setTimeToLive(Duration.ofMinutes(5));
    raw.getDeliveryAnnotations().put("delivery-word", "d");
    raw.getFooter().put("footer-word", "f");
    raw.getApplicationProperties().put("application-word", "a");
    raw.getProperties()
        .setMessageId(new AmqpMessageId("id"))
        .setCorrelationId(new AmqpMessageId("correlation"))
        .setTo(new AmqpAddress("to"))
        .setReplyTo(new AmqpAddress("reply"))
        .setSubject("subject")
        .setContentType("type")
        .setContentEncoding("encoding")
        .setGroupId("group")
        .setReplyToGroupId("reply group")
        .setGroupSequence(3L)
        .setUserId("user".getBytes());
    place.send(queue, sent);
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(queue).buildClient()) {
      ServiceBusReceivedMessage received = Place.one(receiver);
      receiver.complete(received);
      AmqpAnnotatedMessage back = received.getRawAmqpMessage();
      var found = back.getProperties();
      return Place.told(
          "header",
              List.of(back.getHeader().isDurable(), back.getHeader().getPriority(), back.getHeader().getTimeToLive().toString()),
          "delivery", back.getDeliveryAnnotations().get("delivery-word"),
          "footer", back.getFooter().get("footer-word"),
          "application", back.getApplicationProperties().get("application-word"),
          "properties",
              List.of(
                  found.getMessageId().toString(), found.getCorrelationId().toString(), found.getTo().toString(),
                  found.getReplyTo().toString(), found.getSubject(), found.getContentType(), found.getContentEncoding(),
                  found.getGroupId(), found.getReplyToGroupId(), found.getGroupSequence(), new String(found.getUserId())));
    }
  }

  /** What a program sets, and what the broker adds. */
  private static Object properties(Place place) {
    String queue = place.queue();
    ServiceBusMessage message =
        new ServiceBusMessage("m")
            .setMessageId("id")
            .setCorrelationId("correlation")
            .setSubject("subject")
            .setTo("to")
            .setReplyTo("reply")
            .setReplyToSessionId("reply session")
            .setContentType("type")
            .setPartitionKey("session")
            .setSessionId("session")
            .setTimeToLive(Duration.ofMinutes(5));
    OffsetDateTime at = OffsetDateTime.parse("2026-01-02T03:04:05.678Z");
    Map<String, Object> words = message.getApplicationProperties();
    words.putAll(Map.of("text", "t", "int", 1, "long", 2L, "double", 1.5, "float", 2.5f, "bool", true, "byte", (byte) 3));
    words.putAll(Map.of("short", (short) 4, "char", 'c', "uuid", new UUID(1, 2), "at", at, "for", Duration.ofSeconds(90)));
    place.send(queue, message);
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(queue).buildClient()) {
      ServiceBusReceivedMessage back = Place.one(receiver);
      receiver.complete(back);
      Map<String, Object> kinds = new TreeMap<>();
      back.getApplicationProperties()
          .forEach((name, value) -> kinds.put(name, value.getClass().getSimpleName() + " " + value));
      boolean now = Math.abs(Duration.between(back.getEnqueuedTime(), OffsetDateTime.now()).toSeconds()) < 60;
      return Place.told(
          "own",
              List.of(
                  back.getMessageId(), back.getCorrelationId(), back.getSubject(), back.getTo(), back.getReplyTo(),
                  back.getReplyToSessionId(), back.getContentType(), back.getPartitionKey(), back.getSessionId(),
                  back.getTimeToLive().toString()),
          "words", kinds,
          "now", now,
          "life", Duration.between(back.getEnqueuedTime(), back.getExpiresAt()).toString(),
          "state", back.getState().toString(),
          "token", UUID.fromString(back.getLockToken()).toString().equals(back.getLockToken()),
          "number", back.getSequenceNumber() > 0);
    }
  }

  /** A received message is sent again: as the program sent it, without what the broker had added. */
  private static Object sentAgain(Place place) {
    String queue = place.queue();
    ServiceBusMessage message = new ServiceBusMessage("m").setMessageId("id").setSubject("subject");
    message.getApplicationProperties().put("word", "blue");
    place.send(queue, message);
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(queue).buildClient();
        ServiceBusReceiverClient dead =
            place.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient()) {
      receiver.deadLetter(Place.one(receiver), new DeadLetterOptions().setDeadLetterReason("why"));
      ServiceBusReceivedMessage letter = Place.one(dead);
      place.send(queue, new ServiceBusMessage(letter));
      dead.complete(letter);
      ServiceBusReceivedMessage again = Place.one(receiver);
      receiver.complete(again);
      return Place.told(
          "ids", List.of(again.getMessageId(), again.getSubject()), "words", new TreeMap<>(again.getApplicationProperties()),
          "newer", again.getSequenceNumber() > letter.getSequenceNumber(), "count", again.getDeliveryCount());
    }
  }

  private static Object duplicates(Place place) {
    String queue =
        place.queue(
            new CreateQueueOptions()
                .setDuplicateDetectionRequired(true)
                .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(5)));
    place.send(queue, new ServiceBusMessage("first").setMessageId("a"));
    place.send(queue, new ServiceBusMessage("again").setMessageId("a"), new ServiceBusMessage("other").setMessageId("b"));
    place.send(queue, new ServiceBusMessage("none"), new ServiceBusMessage("none"));
    return place.held(queue);
  }

  /** A receive that ends with nothing takes as long as was asked for, and the receiver goes on. */
  private static Object nothingComes(Place place) {
    String queue = place.queue();
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(queue).buildClient()) {
      long began = System.nanoTime();
      List<String> none = Place.bodies(receiver.receiveMessages(1, Place.NOTHING));
      boolean waited = System.nanoTime() - began >= Place.NOTHING.toNanos() * 9 / 10;
      place.send(queue, Place.numbered("m", 1));
      ServiceBusReceivedMessage message = Place.one(receiver);
      receiver.complete(message);
      return Place.told(
          "none", none, "waited", waited, "then", message.getBody().toString(), "count", message.getDeliveryCount());
    }
  }
}
