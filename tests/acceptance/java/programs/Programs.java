import com.azure.core.amqp.AmqpRetryOptions;
import com.azure.core.amqp.AmqpTransportType;
import com.azure.core.amqp.exception.AmqpException;
import com.azure.core.credential.AccessToken;
import com.azure.core.credential.AzureSasCredential;
import com.azure.core.exception.HttpResponseException;
import com.azure.core.exception.ResourceNotFoundException;
import com.azure.core.util.BinaryData;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusException;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusMessageBatch;
import com.azure.messaging.servicebus.ServiceBusProcessorClient;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.ServiceBusSessionReceiverClient;
import com.azure.messaging.servicebus.ServiceBusTransactionContext;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationAsyncClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.AccessRights;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.QueueProperties;
import com.azure.messaging.servicebus.administration.models.SharedAccessAuthorizationRule;
import com.azure.messaging.servicebus.models.DeadLetterOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.net.URI;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import reactor.core.publisher.Flux;
import reactor.core.publisher.Mono;

/** What the Java SDK does with a broker: {@code java Programs NAME JSON}; prints one line of JSON. */
public final class Programs {
  private static final Duration WAIT = Duration.ofSeconds(8);
  /** For what must not come. */
  private static final Duration NOTHING = Duration.ofSeconds(1);
  /** Requests of an administration client that are under way at a time. */
  private static final int AT_A_TIME = 8;

  private final Map<String, Object> given;
  private final ServiceBusClientBuilder builder;
  private final Map<String, Object> told = new LinkedHashMap<>();

  private Programs(Map<String, Object> given) {
    this.given = given;
    this.builder = new ServiceBusClientBuilder().connectionString(text("connection"));
    if (given.containsKey("endpoint")) {
      // Its scheme has to be one that java.net.URL knows; host and port are all that is used of it.
      builder.customEndpointAddress(text("endpoint"));
    }
    if (given.containsKey("websocket")) {
      builder.transportType(AmqpTransportType.AMQP_WEB_SOCKETS);
    }
  }

  @SuppressWarnings("unchecked")
  public static void main(String[] words) throws Exception {
    Programs program = new Programs(BinaryData.fromString(words[1]).toObject(Map.class));
    switch (words[0]) {
      case "sending" -> program.sending();
      case "settling" -> program.settling();
      case "sessions" -> program.sessions();
      case "transactions" -> program.transactions();
      case "processing" -> program.processing();
      case "topics" -> program.topics();
      case "refusals" -> program.refusals();
      case "away" -> program.away();
      case "administering" -> program.administering();
      case "f1" -> program.told.put("found", program.item(((Number) program.given.get("item")).intValue()));
      default -> throw new IllegalArgumentException(words[0]);
    }
    System.out.println(BinaryData.fromObject(program.told).toString());
    // Threads of the SDK outlive its clients.
    System.exit(0);
  }

  private String text(String name) {
    return (String) given.get(name);
  }

  private ServiceBusSenderClient sender() {
    return builder.sender().queueName(text("queue")).buildClient();
  }

  private ServiceBusReceiverClient receiver() {
    return builder.receiver().queueName(text("queue")).buildClient();
  }

  private static List<ServiceBusReceivedMessage> received(ServiceBusReceiverClient receiver, int number) {
    List<ServiceBusReceivedMessage> found = new ArrayList<>();
    while (found.size() < number) {
      int before = found.size();
      receiver.receiveMessages(number - before, WAIT).forEach(found::add);
      if (found.size() == before) {
        break;
      }
    }
    return found;
  }

  private static List<String> bodies(List<ServiceBusReceivedMessage> messages) {
    List<String> found = new ArrayList<>();
    messages.forEach(message -> found.add(message.getBody().toString()));
    return found;
  }

  /** One message, a batch of 100 and a large message, with properties; all are received and completed. */
  private void sending() {
    try (ServiceBusSenderClient sender = sender(); ServiceBusReceiverClient receiver = receiver()) {
      ServiceBusMessage alone = new ServiceBusMessage("alone").setMessageId("an id").setSubject("subject");
      alone.getApplicationProperties().put("number", 7);
      sender.sendMessage(alone);
      ServiceBusMessageBatch batch = sender.createMessageBatch();
      for (int number = 0; number < 100; number++) {
        batch.tryAddMessage(new ServiceBusMessage(Integer.toString(number)));
      }
      sender.sendMessages(batch);
      byte[] large = new byte[200_000];
      for (int index = 0; index < large.length; index++) {
        large[index] = (byte) (index * 31 >> 4);
      }
      sender.sendMessage(new ServiceBusMessage(BinaryData.fromBytes(large)));
      List<ServiceBusReceivedMessage> messages = received(receiver, 102);
      messages.forEach(receiver::complete);
      told.put("bodies", bodies(messages.subList(0, messages.size() - 1)));
      told.put("large", Arrays.equals(messages.get(messages.size() - 1).getBody().toBytes(), large));
      ServiceBusReceivedMessage first = messages.get(0);
      told.put("first", List.of(first.getMessageId(), first.getSubject(), first.getApplicationProperties().get("number")));
      told.put("left", holds(receiver));
    }
  }

  /** Each way to settle a message, and what it does. */
  private void settling() {
    try (ServiceBusSenderClient sender = sender();
        ServiceBusReceiverClient receiver = receiver();
        ServiceBusReceiverClient dead =
            builder.receiver().queueName(text("queue")).subQueue(SubQueue.DEAD_LETTER_QUEUE).buildClient()) {
      for (String body : List.of("dead", "abandoned", "renewed", "deferred")) {
        sender.sendMessage(new ServiceBusMessage(body));
      }
      List<ServiceBusReceivedMessage> messages = received(receiver, 4);
      receiver.deadLetter(messages.get(0), new DeadLetterOptions().setDeadLetterReason("a reason"));
      receiver.abandon(messages.get(1));
      OffsetDateTime until = messages.get(2).getLockedUntil();
      told.put("renewed", receiver.renewMessageLock(messages.get(2)).isAfter(until));
      receiver.complete(messages.get(2));
      receiver.defer(messages.get(3));
      ServiceBusReceivedMessage again = received(receiver, 1).get(0);
      told.put("again", List.of(again.getBody().toString(), again.getDeliveryCount()));
      receiver.complete(again);
      ServiceBusReceivedMessage letter = received(dead, 1).get(0);
      told.put("dead", List.of(letter.getBody().toString(), letter.getDeadLetterReason()));
      dead.complete(letter);
      ServiceBusReceivedMessage peeked = receiver.peekMessage();
      told.put("peeked", List.of(peeked.getBody().toString(), peeked.getState().toString()));
      ServiceBusReceivedMessage deferred = receiver.receiveDeferredMessage(peeked.getSequenceNumber());
      receiver.complete(deferred);
      told.put("deferred", deferred.getBody().toString());
      long number = sender.scheduleMessage(new ServiceBusMessage("later"), OffsetDateTime.now().plusHours(1));
      told.put("scheduled", receiver.peekMessage().getState().toString());
      sender.cancelScheduledMessage(number);
      told.put("left", holds(receiver));
    }
  }

  /** A session by turns: its order, its lock, its state. */
  private void sessions() {
    try (ServiceBusSenderClient sender = sender();
        ServiceBusSessionReceiverClient accepting =
            builder.sessionReceiver().queueName(text("queue")).buildClient()) {
      for (int number = 0; number < 5; number++) {
        sender.sendMessage(new ServiceBusMessage("a" + number).setSessionId("a"));
        sender.sendMessage(new ServiceBusMessage("b" + number).setSessionId("b"));
      }
      try (ServiceBusReceiverClient one = accepting.acceptSession("a")) {
        one.setSessionState("a state".getBytes());
        OffsetDateTime until = one.renewSessionLock();
        told.put("locked", until.isAfter(OffsetDateTime.now()));
        List<ServiceBusReceivedMessage> messages = received(one, 5);
        messages.forEach(one::complete);
        told.put("a", bodies(messages));
      }
      try (ServiceBusReceiverClient next = accepting.acceptNextSession()) {
        told.put("next", next.getSessionId());
        List<ServiceBusReceivedMessage> messages = received(next, 5);
        messages.forEach(next::complete);
        told.put("b", bodies(messages));
      }
      try (ServiceBusReceiverClient again = accepting.acceptSession("a")) {
        told.put("state", new String(again.getSessionState()));
      }
    }
  }

  /** A transaction that is committed, and one that is rolled back. */
  private void transactions() {
    try (ServiceBusSenderClient sender = sender(); ServiceBusReceiverClient receiver = receiver()) {
      sender.sendMessage(new ServiceBusMessage("taken"));
      ServiceBusReceivedMessage taken = received(receiver, 1).get(0);
      ServiceBusTransactionContext undone = sender.createTransaction();
      sender.sendMessage(new ServiceBusMessage("never"), undone);
      sender.rollbackTransaction(undone);
      ServiceBusTransactionContext kept = sender.createTransaction();
      sender.sendMessage(new ServiceBusMessage("one"), kept);
      sender.sendMessage(new ServiceBusMessage("two"), kept);
      told.put("before", received(receiver, 0).size() + (peeks(receiver, "one") ? 1 : 0));
      sender.commitTransaction(kept);
      receiver.complete(taken);
      List<ServiceBusReceivedMessage> messages = received(receiver, 2);
      messages.forEach(receiver::complete);
      told.put("after", bodies(messages));
      List<String> more = new ArrayList<>();
      receiver.receiveMessages(1, NOTHING).forEach(message -> more.add(message.getBody().toString()));
      told.put("more", more);
    }
  }

  private static boolean peeks(ServiceBusReceiverClient receiver, String body) {
    for (ServiceBusReceivedMessage message : receiver.peekMessages(10)) {
      if (message.getBody().toString().equals(body)) {
        return true;
      }
    }
    return false;
  }

  /** Whether a queue has anything; a peek without a number goes on where the last one ended. */
  private static boolean holds(ServiceBusReceiverClient receiver) {
    return receiver.peekMessages(1, 0).stream().findAny().isPresent();
  }

  /** The processor, which completes by itself. */
  private void processing() throws InterruptedException {
    CountDownLatch done = new CountDownLatch(20);
    ConcurrentLinkedQueue<String> errors = new ConcurrentLinkedQueue<>();
    ServiceBusProcessorClient processor =
        builder
            .processor()
            .queueName(text("queue"))
            .maxConcurrentCalls(4)
            .processMessage(context -> done.countDown())
            .processError(context -> errors.add(context.getException().toString()))
            .buildProcessorClient();
    processor.start();
    try (ServiceBusSenderClient sender = sender(); ServiceBusReceiverClient receiver = receiver()) {
      for (int number = 0; number < 20; number++) {
        sender.sendMessage(new ServiceBusMessage("p" + number));
      }
      told.put("all", done.await(10, TimeUnit.SECONDS));
      // Closing interrupts threads that complete messages, and a write that is interrupted takes the SDK's connection with
      // it, which the receiver shares: so it comes last.
      long end = System.nanoTime() + WAIT.toNanos();
      boolean left = true;
      while (left && System.nanoTime() < end) {
        left = holds(receiver);
      }
      told.put("left", left);
      told.put("errors", new ArrayList<>(errors));
      processor.close();
    }
  }

  /** A topic with a subscription that takes all, and one that takes some. */
  private void topics() {
    try (ServiceBusSenderClient sender = builder.sender().topicName(text("topic")).buildClient()) {
      for (int number = 0; number < 4; number++) {
        ServiceBusMessage message = new ServiceBusMessage("t" + number);
        message.getApplicationProperties().put("even", number % 2 == 0);
        sender.sendMessage(message);
      }
    }
    for (String name : List.of("all", "even")) {
      try (ServiceBusReceiverClient receiver =
          builder.receiver().topicName(text("topic")).subscriptionName(name).buildClient()) {
        List<ServiceBusReceivedMessage> messages = received(receiver, name.equals("all") ? 4 : 2);
        messages.forEach(receiver::complete);
        told.put(name, bodies(messages));
      }
    }
  }

  /** What is said of a queue that is not there, and of a message that is too large. */
  private void refusals() {
    try (ServiceBusSenderClient sender = builder.sender().queueName("no-such-queue").buildClient()) {
      sender.sendMessage(new ServiceBusMessage("m"));
      told.put("missing", "none");
    } catch (ServiceBusException error) {
      told.put("missing", error.getReason().toString());
    }
    try (ServiceBusSenderClient sender = sender()) {
      sender.sendMessage(new ServiceBusMessage(BinaryData.fromBytes(new byte[300 * 1024])));
      told.put("large", "none");
    } catch (ServiceBusException error) {
      told.put("large", error.getReason().toString());
    }
  }

  /** What the error of a queue whose messaging store is away says, and that a client that may retry gets through. */
  private void away() {
    AmqpRetryOptions once = new AmqpRetryOptions().setMaxRetries(0);
    ServiceBusClientBuilder hasty = new ServiceBusClientBuilder().connectionString(text("connection")).retryOptions(once);
    try (ServiceBusSenderClient sender = hasty.sender().queueName(text("queue")).buildClient()) {
      sender.sendMessage(new ServiceBusMessage("refused"));
      told.put("reason", "none");
    } catch (ServiceBusException error) {
      // The SDK says that its tries are used up, and what was answered is the cause of that.
      for (Throwable cause = error; cause != null; cause = cause.getCause()) {
        if (cause instanceof AmqpException answer && answer.getErrorCondition() != null) {
          told.put("reason", answer.getErrorCondition().toString());
          told.put("text", answer.getMessage());
          told.put("transient", answer.isTransient());
        }
      }
    }
    long began = System.nanoTime();
    try (ServiceBusSenderClient sender = sender(); ServiceBusReceiverClient receiver = receiver()) {
      sender.sendMessage(new ServiceBusMessage("waits"));
      told.put("took", (System.nanoTime() - began) / 1e9);
      told.put("bodies", bodies(received(receiver, 1)));
    }
  }

  private ServiceBusAdministrationClientBuilder administration() {
    return Place.administration(text("admin"));
  }

  /** A queue is made, changed and deleted, and counted. */
  private void administering() {
    ServiceBusAdministrationClient client = administration().connectionString(text("connection")).buildClient();
    client.createQueue("changing", new CreateQueueOptions().setPartitioningEnabled(true));
    QueueProperties changing = client.getQueue("changing");
    changing.setMaxDeliveryCount(3).setDefaultMessageTimeToLive(Duration.ofMinutes(5));
    client.updateQueue(changing);
    QueueProperties changed = client.getQueue("changing");
    told.put("changed", List.of(changed.getMaxDeliveryCount(), changed.getDefaultMessageTimeToLive().toString(), changed.isPartitioningEnabled()));
    told.put("active", client.getQueueRuntimeProperties("changing").getActiveMessageCount());
    client.deleteQueue("changing");
    told.put("exists", client.getQueueExists("changing"));
    try {
      client.getQueue("changing");
      told.put("gone", "none");
    } catch (ResourceNotFoundException error) {
      told.put("gone", error.getResponse().getStatusCode());
    }
  }

  /** An item of the list in docs/reference/http-coverage.md. */
  private Object item(int number) {
    return switch (number) {
      case 3 -> lengths();
      case 4 -> names();
      case 9 -> tokens();
      default -> throw new IllegalArgumentException(Integer.toString(number));
    };
  }

  /** Queues, and subscriptions of a topic: all that there are, each time when there are as many as asked for. */
  private List<List<String>> lengths() {
    ServiceBusAdministrationAsyncClient client =
        administration().connectionString(text("connection")).buildAsyncClient();
    String topic = text("topic");
    client.createTopic(topic).block();
    List<String> names = texts("names");
    List<List<String>> found = new ArrayList<>();
    int made = 0;
    for (Object length : (List<?>) given.get("lengths")) {
      int number = ((Number) length).intValue();
      Flux.fromIterable(names.subList(made, number))
          .flatMap(name -> client.createQueue(name).then(client.createSubscription(topic, name)), AT_A_TIME)
          .blockLast();
      made = number;
      found.add(client.listQueues().map(QueueProperties::getName).collectList().block());
      found.add(client.listSubscriptions(topic).map(one -> one.getSubscriptionName()).collectList().block());
    }
    return found;
  }

  /** Entities of each name, asked for in the other case. */
  private List<List<Object>> names() {
    ServiceBusAdministrationClient client = administration().connectionString(text("connection")).buildClient();
    List<List<Object>> found = new ArrayList<>();
    for (String name : texts("names")) {
      client.createQueue(name);
      String queue = client.getQueue(otherCase(name)).getName();
      boolean listed = client.listQueues().stream().anyMatch(one -> one.getName().equals(name));
      client.deleteQueue(name.toUpperCase());
      client.createTopic(name);
      client.createSubscription(name, "s");
      List<String> rules = client.listRules(name, "S").stream().map(one -> one.getName()).toList();
      String rule = client.getRule(name, "s", "$Default").getName();
      client.deleteTopic(name);
      found.add(List.of(queue, listed, rules, rule));
    }
    return found;
  }

  private static String otherCase(String name) {
    StringBuilder other = new StringBuilder();
    for (char letter : name.toCharArray()) {
      other.append(Character.isLowerCase(letter) ? Character.toUpperCase(letter) : Character.toLowerCase(letter));
    }
    return other.toString();
  }

  /** What a queue with a rule of its own, and one beside it, answer to keys and tokens. */
  private Map<String, List<String>> tokens() {
    ServiceBusAdministrationClient client = administration().connectionString(text("connection")).buildClient();
    CreateQueueOptions options = new CreateQueueOptions();
    List<AccessRights> all = List.copyOf(AccessRights.values());
    SharedAccessAuthorizationRule rule =
        new SharedAccessAuthorizationRule(text("rule"), text("primary"), text("secondary"), all);
    options.getAuthorizationRules().add(rule);
    client.createQueue(texts("queues").get(0), options);
    client.createQueue(texts("queues").get(1));
    Map<String, List<String>> found = new LinkedHashMap<>();
    for (Map.Entry<?, ?> key : ((Map<?, ?>) given.get("keys")).entrySet()) {
      found.put((String) key.getKey(), answers(administration().connectionString((String) key.getValue())));
    }
    for (Map.Entry<?, ?> token : ((Map<?, ?>) given.get("tokens")).entrySet()) {
      AzureSasCredential credential = new AzureSasCredential((String) token.getValue());
      found.put((String) token.getKey(), answers(administration().endpoint(text("admin")).credential(credential)));
    }
    // The one way without a policy: the builder takes this name as it is, with its port.
    AccessToken token = new AccessToken(text("token"), OffsetDateTime.MAX);
    String place = URI.create(text("admin")).getAuthority();
    found.put("place", answers(new ServiceBusAdministrationClientBuilder().credential(place, asked -> Mono.just(token))));
    return found;
  }

  private List<String> answers(ServiceBusAdministrationClientBuilder builder) {
    ServiceBusAdministrationClient client = builder.buildClient();
    return texts("queues").stream().map(queue -> outcome(() -> client.getQueue(queue).getName())).toList();
  }

  private static String outcome(Supplier<String> call) {
    try {
      return call.get();
    } catch (HttpResponseException error) {
      return error.getClass().getSimpleName() + " " + error.getResponse().getStatusCode();
    }
  }

  private List<String> texts(String name) {
    return ((List<?>) given.get(name)).stream().map(String.class::cast).toList();
  }
}
