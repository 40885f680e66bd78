import com.azure.core.http.policy.HttpPipelinePolicy;
import com.azure.core.util.IterableStream;
import com.azure.messaging.servicebus.ServiceBusClientBuilder;
import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusSenderClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationAsyncClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClientBuilder;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.models.SubQueue;
import java.net.MalformedURLException;
import java.net.URI;
import java.net.URL;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;

/** Where a scenario plays: entities that no other one touches, clients for them, and what it waits with. */
final class Place {
  /** For what has to come; no scenario takes that long unless it fails. */
  static final Duration WAIT = Duration.ofSeconds(20);
  /** For what must not come. */
  static final Duration NOTHING = Duration.ofSeconds(1);
  /** The shortest lock that a queue may have. */
  static final Duration SHORT_LOCK = Duration.ofSeconds(5);

  final String connection;
  final String adminUrl;
  final String prefix;
  final ServiceBusAdministrationClient admin;
  final ServiceBusAdministrationAsyncClient asyncAdmin;
  private int made;

  Place(Map<String, Object> given, String prefix) {
    this.connection = (String) given.get("connection");
    this.adminUrl = (String) given.get("admin");
    this.prefix = prefix;
    this.admin = administration(adminUrl).connectionString(connection).buildClient();
    this.asyncAdmin = administration(adminUrl).connectionString(connection).buildAsyncClient();
  }

  /** An administration client drops the port of its address, and a policy puts it back. */
  static ServiceBusAdministrationClientBuilder administration(String address) {
    URI uri = URI.create(address);
    HttpPipelinePolicy there =
        (context, next) -> {
          URL url = context.getHttpRequest().getUrl();
          try {
            context.getHttpRequest().setUrl(new URL(uri.getScheme(), uri.getHost(), uri.getPort(), url.getFile()));
          } catch (MalformedURLException error) {
            throw new IllegalStateException(error);
          }
          return next.process();
        };
    return new ServiceBusAdministrationClientBuilder().addPolicy(there);
  }

  /** A builder of its own: what is built from one shares a connection. */
  ServiceBusClientBuilder builder() {
    return new ServiceBusClientBuilder().connectionString(connection);
  }

  String fresh() {
    return prefix + "-" + made++;
  }

  String queue() {
    return queue(new CreateQueueOptions());
  }

  String queue(CreateQueueOptions options) {
    String name = fresh();
    admin.createQueue(name, options);
    return name;
  }

  String sessionQueue() {
    return queue(new CreateQueueOptions().setSessionRequired(true));
  }

  String topic(String... subscriptions) {
    String name = fresh();
    admin.createTopic(name);
    for (String subscription : subscriptions) {
      admin.createSubscription(name, subscription, new CreateSubscriptionOptions());
    }
    return name;
  }

  /** Send by a client that is gone afterwards. */
  void send(String queue, ServiceBusMessage... messages) {
    try (ServiceBusSenderClient sender = builder().sender().queueName(queue).buildClient()) {
      sender.sendMessages(Arrays.asList(messages));
    }
  }

  void sendToTopic(String topic, ServiceBusMessage... messages) {
    try (ServiceBusSenderClient sender = builder().sender().topicName(topic).buildClient()) {
      sender.sendMessages(Arrays.asList(messages));
    }
  }

  static ServiceBusMessage[] numbered(String word, int number) {
    ServiceBusMessage[] found = new ServiceBusMessage[number];
    for (int index = 0; index < number; index++) {
      found[index] = new ServiceBusMessage(word + index);
    }
    return found;
  }

  static ServiceBusMessage inSession(String session, String body) {
    return new ServiceBusMessage(body).setSessionId(session);
  }

  static List<ServiceBusReceivedMessage> received(ServiceBusReceiverClient receiver, int number) {
    List<ServiceBusReceivedMessage> found = new ArrayList<>();
    while (found.size() < number) {
      int before = found.size();
      receiver.receiveMessages(number - before, WAIT).forEach(found::add);
      if (found.size() == before) {
        throw new IllegalStateException("only " + before + " of " + number + " messages came");
      }
    }
    return found;
  }

  static ServiceBusReceivedMessage one(ServiceBusReceiverClient receiver) {
    return received(receiver, 1).get(0);
  }

  static List<String> bodies(Iterable<ServiceBusReceivedMessage> messages) {
    List<String> found = new ArrayList<>();
    messages.forEach(message -> found.add(message.getBody().toString()));
    return found;
  }

  static List<Long> numbers(Iterable<ServiceBusReceivedMessage> messages) {
    List<Long> found = new ArrayList<>();
    messages.forEach(message -> found.add(message.getSequenceNumber()));
    return found;
  }

  /** Bodies of what a queue holds, whatever its state, from its beginning on. */
  static List<String> held(ServiceBusReceiverClient receiver) {
    IterableStream<ServiceBusReceivedMessage> messages = receiver.peekMessages(50, 0);
    return bodies(messages);
  }

  List<String> held(String queue) {
    return held(queue, SubQueue.NONE);
  }

  List<String> held(String queue, SubQueue part) {
    try (ServiceBusReceiverClient receiver = builder().receiver().queueName(queue).subQueue(part).buildClient()) {
      return held(receiver);
    }
  }

  /** What a queue with sessions, or one of a subscription, holds is counted: its receivers see one session each. */
  int active(String queue) {
    return admin.getQueueRuntimeProperties(queue).getActiveMessageCount();
  }

  /** Wait until something is so; whether it became so. */
  static boolean becomes(BooleanSupplier so) throws InterruptedException {
    long end = System.nanoTime() + WAIT.toNanos();
    while (!so.getAsBoolean()) {
      if (System.nanoTime() > end) {
        return false;
      }
      Thread.sleep(50);
    }
    return true;
  }

  /** Names and values by turns. */
  static Map<String, Object> told(Object... words) {
    Map<String, Object> found = new LinkedHashMap<>();
    for (int index = 0; index < words.length; index += 2) {
      found.put((String) words[index], words[index + 1]);
    }
    return found;
  }

  /** What went wrong, in the SDK's word for it, or none. */
  static String refusal(Call call) {
    try {
      call.run();
      return "none";
    } catch (Exception error) {
      return reason(error);
    }
  }

  static String reason(Throwable error) {
    for (Throwable cause = error; cause != null; cause = cause.getCause()) {
      if (cause instanceof com.azure.messaging.servicebus.ServiceBusException known
          && known.getReason() != com.azure.messaging.servicebus.ServiceBusFailureReason.GENERAL_ERROR) {
        return known.getReason().toString();
      }
      if (cause instanceof com.azure.core.amqp.exception.AmqpException answer && answer.getErrorCondition() != null) {
        return answer.getErrorCondition().getErrorCondition();
      }
      if (cause instanceof com.azure.core.exception.HttpResponseException answer) {
        return answer.getClass().getSimpleName() + " " + answer.getResponse().getStatusCode();
      }
    }
    return error.getClass().getSimpleName();
  }

  /** A piece of work that may throw. */
  interface Call {
    void run() throws Exception;
  }
}
