import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverAsyncClient;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverAsyncClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.models.CompleteOptions;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.ServiceBusReceiveMode;
import com.azure.messaging.servicebus.models.SubQueue;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.Consumer;

/** Receivers of sessions: how they are accepted, whose they are, their state, and what is in them. */
final class Sessions {
  static final Map<String, Scenarios.Scenario> ALL =
      Map.ofEntries(
          Map.entry("session-accept-next-until-none", Sessions::acceptNextUntilNone),
          Map.entry("session-accept-async", Sessions::acceptAsync),
          Map.entry("session-contended", Sessions::contended),
          Map.entry("session-state", Sessions::state),
          Map.entry("session-state-async", Sessions::stateAsync),
          Map.entry("session-settling", Sessions::settling),
          Map.entry("session-subscription", Sessions::subscription),
          Map.entry("session-receive-and-delete", Sessions::receiveAndDelete),
          Map.entry("session-transactions", Sessions::transactions),
          Map.entry("session-plain-receiver", Sessions::plainReceiver),
          Map.entry("session-message-without", Sessions::messageWithout),
          Map.entry("session-waited-for", Sessions::waitedFor));

  private Sessions() {}

  private static ServiceBusClientBuilder hasty(Place place) {
    return place.builder().retryOptions(new AmqpRetryOptions().setMaxRetries(0).setTryTimeout(Duration.ofSeconds(3)));
  }

  /** Each call gets another session, the oldest first; when all are held, the wait ends with a timeout. */
  private static Object acceptNextUntilNone(Place place) {
    String queue = place.sessionQueue();
    for (String session : List.of("z", "a", "m")) {
      place.send(queue, Place.inSession(session, session + "0"));
    }
    List<String> ids = new ArrayList<>();
    List<String> bodies = new ArrayList<>();
    List<ServiceBusReceiverClient> held = new ArrayList<>();
    try (ServiceBusSessionReceiverClient accepting = hasty(place).sessionReceiver().queueName(queue).buildClient()) {
      for (int number = 0; number < 3; number++) {
        ServiceBusReceiverClient receiver = accepting.acceptNextSession();
        held.add(receiver);
        ids.add(receiver.getSessionId());
        bodies.addAll(Place.bodies(Place.received(receiver, 1)));
      }
      String none = Place.refusal(accepting::acceptNextSession);
      held.get(1).close();
      String freed = accepting.acceptNextSession().getSessionId();
      held.forEach(ServiceBusReceiverClient::close);
      return Place.told("ids", ids, "bodies", bodies, "none", none, "freed", freed);
    }
  }

  private static Object acceptAsync(Place place) {
    String queue = place.sessionQueue();
    place.send(queue, Place.inSession("a", "a0"), Place.inSession("a", "a1"));
    place.send(queue, Place.inSession("b", "b0"));
    try (ServiceBusSessionReceiverAsyncClient accepting =
        place.builder().sessionReceiver().queueName(queue).disableAutoComplete().buildAsyncClient()) {
      ServiceBusReceiverAsyncClient next = accepting.acceptNextSession().block(Place.WAIT);
      ServiceBusReceiverAsyncClient named = accepting.acceptSession("b").block(Place.WAIT);
      Map<String, Object> found = new TreeMap<>();
      for (ServiceBusReceiverAsyncClient receiver : List.of(next, named)) {
        int number = receiver == next ? 2 : 1;
        boolean renewed = receiver.renewSessionLock().block(Place.WAIT).isAfter(OffsetDateTime.now());
        List<String> bodies =
            receiver
                .receiveMessages()
                .concatMap(message -> receiver.complete(message).thenReturn(message.getBody().toString()))
                .take(number)
                .collectList()
                .block(Place.WAIT);
        found.put(receiver.getSessionId(), List.of(bodies, renewed));
        receiver.close();
      }
      found.put("left", place.active(queue));
      return found;
    }
  }

  private static Object contended(Place place) {
    String queue = place.sessionQueue();
    place.send(queue, Place.inSession("s", "m"));
    try (ServiceBusSessionReceiverClient ones = hasty(place).sessionReceiver().queueName(queue).buildClient();
        ServiceBusSessionReceiverClient others = hasty(place).sessionReceiver().queueName(queue).buildClient()) {
      ServiceBusReceiverClient one = ones.acceptSession("s");
      String refused = Place.refusal(() -> others.acceptSession("s"));
      Place.one(one);
      one.close();
      try (ServiceBusReceiverClient other = others.acceptSession("s")) {
        ServiceBusReceivedMessage again = Place.one(other);
        other.complete(again);
        return Place.told("refused", refused, "again", again.getBody().toString());
      }
    }
  }

  private static String text(byte[] state) {
    return state == null ? "none" : "'" + new String(state) + "'";
  }

  private static Object state(Place place) {
    String queue = place.sessionQueue();
    List<String> states = new ArrayList<>();
    // A session may be accepted by its name before it has messages.
    inSession(place, queue, "s", receiver -> {
      states.add(text(receiver.getSessionState()));
      receiver.setSessionState("one".getBytes());
      states.add(text(receiver.getSessionState()));
      receiver.setSessionState("two".getBytes());
    });
    inSession(place, queue, "s", receiver -> {
      states.add(text(receiver.getSessionState()));
      receiver.setSessionState(null);
      states.add(text(receiver.getSessionState()));
    });
    inSession(place, queue, "other", receiver -> states.add(text(receiver.getSessionState())));
    return states;
  }

  /** On a connection of its own: on one connection the SDK may take a link that it is just closing for a new one. */
  private static void inSession(Place place, String queue, String session, Consumer<ServiceBusReceiverClient> work) {
    try (ServiceBusSessionReceiverClient accepting = place.builder().sessionReceiver().queueName(queue).buildClient();
        ServiceBusReceiverClient receiver = accepting.acceptSession(session)) {
      work.accept(receiver);
    }
  }

  private static Object stateAsync(Place place) {
    String queue = place.sessionQueue();
    try (ServiceBusSessionReceiverAsyncClient accepting =
            place.builder().sessionReceiver().queueName(queue).buildAsyncClient();
        ServiceBusReceiverAsyncClient receiver = accepting.acceptSession("s").block(Place.WAIT)) {
      byte[] binary = {0, 1, (byte) 0xFF, 10};
      receiver.setSessionState(binary).block(Place.WAIT);
      byte[] back = receiver.getSessionState().block(Place.WAIT);
      receiver.setSessionState(null).block(Place.WAIT);
      byte[] cleared = receiver.getSessionState().block(Place.WAIT);
      return Place.told("same", java.util.Arrays.equals(binary, back), "cleared", text(cleared));
    }
  }

  /** What a receiver of a session does with its messages, and that it sees no others. */
  private static Object settling(Place place) {
    String queue = place.sessionQueue();
    for (String body : List.of("dead", "abandoned", "deferred", "last")) {
      place.send(queue, Place.inSession("s", body));
    }
    place.send(queue, Place.inSession("other", "of the other"));
    try (ServiceBusSessionReceiverClient accepting = place.builder().sessionReceiver().queueName(queue).buildClient();
        ServiceBusReceiverClient receiver = accepting.acceptSession("s");
        ServiceBusReceiverClient dead =
            place.builder().receiver().queueName(queue).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient()) {
      List<String> peeked = Place.held(receiver);
      receiver.deadLetter(Place.one(receiver), new DeadLetterOptions().setDeadLetterReason("why"));
      receiver.abandon(Place.one(receiver));
      ServiceBusReceivedMessage again = Place.one(receiver);
      receiver.complete(again);
      ServiceBusReceivedMessage deferred = Place.one(receiver);
      receiver.defer(deferred);
      receiver.complete(Place.one(receiver));
      ServiceBusReceivedMessage back = receiver.receiveDeferredMessage(deferred.getSequenceNumber());
      receiver.complete(back);
      ServiceBusReceivedMessage letter = Place.one(dead);
      dead.complete(letter);
      return Place.told(
          "peeked", peeked,
          "again", List.of(again.getBody().toString(), again.getDeliveryCount()),
          "back", back.getBody().toString(),
          "letter", List.of(letter.getBody().toString(), letter.getDeadLetterReason(), letter.getSessionId()),
          "left", place.active(queue));
    }
  }

  private static Object subscription(Place place) {
    String topic = place.topic();
    place.admin.createSubscription(topic, "s", new CreateSubscriptionOptions().setSessionRequired(true));
    place.sendToTopic(topic, Place.inSession("a", "a0"), Place.inSession("a", "a1"));
    try (ServiceBusSessionReceiverClient accepting =
            place.builder().sessionReceiver().topicName(topic).subscriptionName("s").buildClient();
        ServiceBusReceiverClient receiver = accepting.acceptNextSession()) {
      List<ServiceBusReceivedMessage> messages = Place.received(receiver, 2);
      receiver.setSessionState("of a subscription".getBytes());
      messages.forEach(receiver::complete);
      return Place.told(
          "id", receiver.getSessionId(), "bodies", Place.bodies(messages), "state", text(receiver.getSessionState()));
    }
  }

  private static Object receiveAndDelete(Place place) {
    String queue = place.sessionQueue();
    place.send(queue, Place.inSession("s", "m0"), Place.inSession("s", "m1"));
    try (ServiceBusSessionReceiverClient accepting =
            place
                .builder()
                .sessionReceiver()
                .queueName(queue)
                .receiveMode(ServiceBusReceiveMode.RECEIVE_AND_DELETE)
                .buildClient();
        ServiceBusReceiverClient receiver = accepting.acceptSession("s")) {
      List<String> bodies = Place.bodies(Place.received(receiver, 2));
      return Place.told("bodies", bodies, "left", Place.held(receiver));
    }
  }

  /** A settlement in a session, and a send to it, of one transaction: rolled back, and committed. */
  private static Object transactions(Place place) {
    String queue = place.sessionQueue();
    place.send(queue, Place.inSession("s", "kept"), Place.inSession("s", "taken"));
    ServiceBusClientBuilder builder = place.builder();
    try (ServiceBusSenderClient sender = builder.sender().queueName(queue).buildClient();
        ServiceBusSessionReceiverClient accepting = builder.sessionReceiver().queueName(queue).buildClient();
        ServiceBusReceiverClient receiver = accepting.acceptSession("s")) {
      List<ServiceBusReceivedMessage> messages = Place.received(receiver, 2);
      ServiceBusTransactionContext undone = receiver.createTransaction();
      receiver.complete(messages.get(0), new CompleteOptions().setTransactionContext(undone));
      sender.sendMessage(Place.inSession("s", "never"), undone);
      receiver.rollbackTransaction(undone);
      List<String> after = Place.held(receiver);
      ServiceBusTransactionContext kept = receiver.createTransaction();
      receiver.complete(messages.get(1), new CompleteOptions().setTransactionContext(kept));
      sender.sendMessage(Place.inSession("s", "reply"), kept);
      receiver.commitTransaction(kept);
      return Place.told("rolled back", after, "committed", Place.held(receiver));
    }
  }

  private static Object plainReceiver(Place place) {
    String queue = place.sessionQueue();
    String plain = place.queue();
    try (ServiceBusReceiverClient receiver = hasty(place).receiver().queueName(queue).buildClient();
        ServiceBusSessionReceiverClient accepting = hasty(place).sessionReceiver().queueName(plain).buildClient()) {
      return Place.told(
          "plain", Place.refusal(() -> receiver.receiveMessages(1, Duration.ofSeconds(8)).forEach(message -> {})),
          "session", Place.refusal(() -> accepting.acceptSession("s")));
    }
  }

  private static Object messageWithout(Place place) {
    String queue = place.sessionQueue();
    try (ServiceBusSenderClient sender = hasty(place).sender().queueName(queue).buildClient()) {
      String refused = Place.refusal(() -> sender.sendMessage(new ServiceBusMessage("m")));
      sender.sendMessage(Place.inSession("", "of the session with an empty name"));
      return Place.told("refused", refused, "active", place.active(queue));
    }
  }

  /** One that waits for any session gets the one that comes meanwhile. */
  private static Object waitedFor(Place place) throws Exception {
    String queue = place.sessionQueue();
    try (ServiceBusSessionReceiverAsyncClient accepting =
        place.builder().sessionReceiver().queueName(queue).buildAsyncClient()) {
      var waiting = accepting.acceptNextSession().toFuture();
      Thread.sleep(Place.NOTHING.toMillis());
      boolean early = waiting.isDone();
      place.send(queue, Place.inSession("late", "m"));
      ServiceBusReceiverAsyncClient receiver = waiting.get(Place.WAIT.toSeconds(), java.util.concurrent.TimeUnit.SECONDS);
      String body = receiver.receiveMessages().next().block(Place.WAIT).getBody().toString();
      String id = receiver.getSessionId();
      receiver.close();
      return Place.told("early", early, "id", id, "body", body);
    }
  }
}
