import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationAsyncClient;
import com.azure.messaging.servicebus.administration.ServiceBusAdministrationClient;
import com.azure.messaging.servicebus.administration.models.AccessRights;
import com.azure.messaging.servicebus.administration.models.AuthorizationRule;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateQueueOptions;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.CreateSubscriptionOptions;
import com.azure.messaging.servicebus.administration.models.CreateTopicOptions;
import com.azure.messaging.servicebus.administration.models.EntityStatus;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.QueueProperties;
import com.azure.messaging.servicebus.administration.models.QueueRuntimeProperties;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SharedAccessAuthorizationRule;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.SubscriptionProperties;
import com.azure.messaging.servicebus.administration.models.SubscriptionRuntimeProperties;
import com.azure.messaging.servicebus.administration.models.TopicProperties;
import com.azure.messaging.servicebus.administration.models.TopicRuntimeProperties;
import java.time.Duration;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The administration client. */
final class Entities {
  static final Map<String, Scenarios.Scenario> ALL =
      Map.ofEntries(
          Map.entry("admin-queue", Entities::queue),
          Map.entry("admin-topic", Entities::topic),
          Map.entry("admin-subscription", Entities::subscription),
          Map.entry("admin-rule", Entities::rule),
          Map.entry("admin-async", Entities::async),
          Map.entry("admin-lists", Entities::lists),
          Map.entry("admin-counts", Entities::counts),
          Map.entry("admin-access-rules", Entities::accessRules),
          Map.entry("admin-refusals", Entities::refusals),
          Map.entry("admin-refusals-async", Entities::refusalsAsync),
          Map.entry("admin-forwarding", Entities::forwarding),
          Map.entry("admin-disabled", Entities::disabled),
          Map.entry("admin-namespace", Entities::namespace));

  private Entities() {}

  private static List<Object> words(QueueProperties queue) {
    return Arrays.asList(
        queue.getLockDuration().toString(), queue.getMaxDeliveryCount(), queue.getDefaultMessageTimeToLive().toString(),
        queue.getDuplicateDetectionHistoryTimeWindow().toString(), queue.getAutoDeleteOnIdle().toString(),
        queue.isSessionRequired(), queue.isDuplicateDetectionRequired(), queue.isDeadLetteringOnMessageExpiration(),
        queue.isBatchedOperationsEnabled(), queue.isPartitioningEnabled(), queue.getMaxSizeInMegabytes(),
        queue.getUserMetadata(), queue.getStatus().toString());
  }

  private static Object queue(Place place) {
    ServiceBusAdministrationClient client = place.admin;
    String name = place.fresh();
    boolean before = client.getQueueExists(name);
    CreateQueueOptions options =
        new CreateQueueOptions()
            .setLockDuration(Duration.ofSeconds(45))
            .setMaxDeliveryCount(7)
            .setDefaultMessageTimeToLive(Duration.ofDays(3))
            .setDuplicateDetectionRequired(true)
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(2))
            .setAutoDeleteOnIdle(Duration.ofHours(6))
            .setSessionRequired(true)
            .setDeadLetteringOnMessageExpiration(true)
            .setBatchedOperationsEnabled(false)
            .setMaxSizeInMegabytes(2048)
            .setUserMetadata("notes & <more>");
    List<Object> made = words(client.createQueue(name, options));
    QueueProperties got = client.getQueue(name);
    got.setLockDuration(Duration.ofSeconds(10)).setMaxDeliveryCount(20).setUserMetadata("others");
    got.setDeadLetteringOnMessageExpiration(false).setStatus(EntityStatus.SEND_DISABLED);
    List<Object> changed = words(client.updateQueue(got));
    boolean same = changed.equals(words(client.getQueue(name)));
    boolean exists = client.getQueueExists(name);
    client.deleteQueue(name);
    return Place.told(
        "before", before, "made", made, "changed", changed, "same", same, "exists", exists,
        "after", client.getQueueExists(name));
  }

  private static List<Object> words(TopicProperties topic) {
    return Arrays.asList(
        topic.getDefaultMessageTimeToLive().toString(), topic.getDuplicateDetectionHistoryTimeWindow().toString(),
        topic.getAutoDeleteOnIdle().toString(), topic.isDuplicateDetectionRequired(), topic.isBatchedOperationsEnabled(),
        topic.isOrderingSupported(), topic.getMaxSizeInMegabytes(), topic.getUserMetadata(), topic.getStatus().toString());
  }

  private static Object topic(Place place) {
    ServiceBusAdministrationClient client = place.admin;
    String name = place.fresh();
    CreateTopicOptions options =
        new CreateTopicOptions()
            .setDefaultMessageTimeToLive(Duration.ofDays(3))
            .setDuplicateDetectionRequired(true)
            .setDuplicateDetectionHistoryTimeWindow(Duration.ofMinutes(2))
            .setAutoDeleteOnIdle(Duration.ofHours(6))
            .setOrderingSupported(true)
            .setMaxSizeInMegabytes(2048)
            .setUserMetadata("notes");
    List<Object> made = words(client.createTopic(name, options));
    TopicProperties got = client.getTopic(name);
    got.setDefaultMessageTimeToLive(Duration.ofDays(1)).setUserMetadata("others").setStatus(EntityStatus.DISABLED);
    List<Object> changed = words(client.updateTopic(got));
    boolean same = changed.equals(words(client.getTopic(name)));
    boolean exists = client.getTopicExists(name);
    client.deleteTopic(name);
    return Place.told("made", made, "changed", changed, "same", same, "exists", exists, "after", client.getTopicExists(name));
  }

  private static List<Object> words(SubscriptionProperties one) {
    return Arrays.asList(
        one.getLockDuration().toString(), one.getMaxDeliveryCount(), one.getDefaultMessageTimeToLive().toString(),
        one.getAutoDeleteOnIdle().toString(), one.isSessionRequired(), one.isDeadLetteringOnMessageExpiration(),
        one.isDeadLetteringOnFilterEvaluationExceptions(), one.isBatchedOperationsEnabled(), one.getUserMetadata(),
        one.getStatus().toString());
  }

  private static Object subscription(Place place) {
    ServiceBusAdministrationClient client = place.admin;
    String topic = place.topic();
    CreateSubscriptionOptions options =
        new CreateSubscriptionOptions()
            .setLockDuration(Duration.ofSeconds(45))
            .setMaxDeliveryCount(7)
            .setDefaultMessageTimeToLive(Duration.ofDays(3))
            .setAutoDeleteOnIdle(Duration.ofHours(6))
            .setSessionRequired(true)
            .setDeadLetteringOnMessageExpiration(true)
            .setEnableDeadLetteringOnFilterEvaluationExceptions(false)
            .setBatchedOperationsEnabled(false)
            .setUserMetadata("notes");
    List<Object> made = words(client.createSubscription(topic, "s", options));
    SubscriptionProperties got = client.getSubscription(topic, "s");
    got.setLockDuration(Duration.ofSeconds(10)).setMaxDeliveryCount(20).setUserMetadata("others");
    got.setDefaultMessageTimeToLive(Duration.ofDays(1)).setStatus(EntityStatus.RECEIVE_DISABLED);
    List<Object> changed = words(client.updateSubscription(got));
    boolean same = changed.equals(words(client.getSubscription(topic, "s")));
    CreateRuleOptions first = new CreateRuleOptions(new SqlRuleFilter("size > 3"));
    client.createSubscription(topic, "ruled", "big", new CreateSubscriptionOptions(), first);
    List<String> rules = client.listRules(topic, "ruled").stream().map(RuleProperties::getName).toList();
    List<Boolean> exists = new ArrayList<>(List.of(client.getSubscriptionExists(topic, "S")));
    client.deleteSubscription(topic, "s");
    exists.add(client.getSubscriptionExists(topic, "s"));
    return Place.told("made", made, "changed", changed, "same", same, "rules", rules, "exists", exists);
  }

  private static Object rule(Place place) {
    ServiceBusAdministrationClient client = place.admin;
    String topic = place.topic("s");
    CorrelationRuleFilter filter = new CorrelationRuleFilter("c").setLabel("l");
    filter.getProperties().putAll(Map.of("word", "blue", "size", 7, "flag", true));
    SqlRuleAction action = new SqlRuleAction("SET a = 1");
    RuleProperties made = client.createRule(topic, "both", "s", new CreateRuleOptions(filter).setAction(action));
    CorrelationRuleFilter back = (CorrelationRuleFilter) client.getRule(topic, "s", "both").getFilter();
    Map<String, Object> kinds = new TreeMap<>();
    back.getProperties().forEach((name, value) -> kinds.put(name, value.getClass().getSimpleName() + " " + value));
    RuleProperties got = client.getRule(topic, "s", "both");
    got.setFilter(new SqlRuleFilter("size > 3")).setAction(null);
    client.updateRule(topic, "s", got);
    RuleProperties changed = client.getRule(topic, "s", "both");
    client.createRule(topic, "none", "s", new CreateRuleOptions(new FalseRuleFilter()));
    List<String> names = client.listRules(topic, "s").stream().map(RuleProperties::getName).sorted().toList();
    client.deleteRule(topic, "s", "both");
    return Place.told(
        "made", made.getName(),
        "filter", List.of(back.getCorrelationId(), back.getLabel(), kinds),
        "action", ((SqlRuleAction) made.getAction()).getSqlExpression(),
        "changed", ((SqlRuleFilter) changed.getFilter()).getSqlExpression() + " " + (changed.getAction() instanceof SqlRuleAction),
        "names", names,
        "left", client.listRules(topic, "s").stream().map(RuleProperties::getName).sorted().toList());
  }

  /** The same life of entities with the asynchronous client. */
  private static Object async(Place place) {
    ServiceBusAdministrationAsyncClient client = place.asyncAdmin;
    String queue = place.fresh();
    String topic = place.fresh();
    List<Object> found = new ArrayList<>();
    found.add(
        client
            .createQueue(queue, new CreateQueueOptions().setMaxDeliveryCount(7))
            .flatMap(made -> client.updateQueue(made.setMaxDeliveryCount(8)))
            .flatMap(changed -> client.getQueue(queue))
            .map(QueueProperties::getMaxDeliveryCount)
            .block(Place.WAIT));
    found.add(client.getQueueRuntimeProperties(queue).map(QueueRuntimeProperties::getTotalMessageCount).block(Place.WAIT));
    found.add(
        client
            .createTopic(topic)
            .flatMap(made -> client.updateTopic(made.setUserMetadata("notes")))
            .flatMap(changed -> client.getTopic(topic))
            .map(TopicProperties::getUserMetadata)
            .block(Place.WAIT));
    found.add(
        client
            .createSubscription(topic, "s")
            .flatMap(made -> client.updateSubscription(made.setMaxDeliveryCount(9)))
            .flatMap(changed -> client.getSubscription(topic, "s"))
            .map(SubscriptionProperties::getMaxDeliveryCount)
            .block(Place.WAIT));
    found.add(
        client
            .createRule(topic, "s", "r", new CreateRuleOptions(new SqlRuleFilter("size > 3")))
            .flatMap(made -> client.updateRule(topic, "s", made.setFilter(new SqlRuleFilter("size > 4"))))
            .flatMap(changed -> client.getRule(topic, "s", "r"))
            .map(one -> ((SqlRuleFilter) one.getFilter()).getSqlExpression())
            .block(Place.WAIT));
    found.add(client.listRules(topic, "s").map(RuleProperties::getName).sort().collectList().block(Place.WAIT));
    found.add(client.getTopicRuntimeProperties(topic).map(TopicRuntimeProperties::getSubscriptionCount).block(Place.WAIT));
    found.add(client.getSubscriptionRuntimeProperties(topic, "s").map(SubscriptionRuntimeProperties::getTotalMessageCount).block(Place.WAIT));
    client.deleteRule(topic, "s", "r").block(Place.WAIT);
    client.deleteSubscription(topic, "s").block(Place.WAIT);
    List<Boolean> exists = new ArrayList<>();
    exists.add(client.getSubscriptionExists(topic, "s").block(Place.WAIT));
    exists.add(client.getTopicExists(topic).block(Place.WAIT));
    exists.add(client.getQueueExists(queue).block(Place.WAIT));
    client.deleteTopic(topic).then(client.deleteQueue(queue)).block(Place.WAIT);
    exists.add(client.getTopicExists(topic).block(Place.WAIT));
    exists.add(client.getQueueExists(queue).block(Place.WAIT));
    found.add(exists);
    return found;
  }

  private static Object lists(Place place) {
    ServiceBusAdministrationClient client = place.admin;
    List<String> names = List.of(place.fresh(), place.fresh(), place.fresh());
    names.forEach(client::createQueue);
    String topic = place.topic("b", "a", "c");
    String other = place.topic();
    List<String> queues = client.listQueues().stream().map(QueueProperties::getName).filter(names::contains).toList();
    List<String> topics =
        client.listTopics().stream().map(TopicProperties::getName).filter(List.of(topic, other)::contains).toList();
    return Place.told(
        "queues", queues.equals(names), "topics", topics.equals(List.of(topic, other)),
        "subscriptions", client.listSubscriptions(topic).stream().map(SubscriptionProperties::getSubscriptionName).toList(),
        "none", client.listSubscriptions(other).stream().count(),
        "rules", client.listRules(topic, "a").stream().map(RuleProperties::getName).toList());
  }

  /** Messages of each state are counted, in queues and subscriptions. */
  private static Object counts(Place place) {
    ServiceBusAdministrationClient client = place.admin;
    String queue = place.queue();
    place.send(queue, Place.numbered("m", 4));
    String topic = place.topic("s");
    OffsetDateTime later = OffsetDateTime.now().plusHours(1);
    place.send(queue, new ServiceBusMessage("later").setScheduledEnqueueTime(later));
    place.sendToTopic(topic, new ServiceBusMessage("t0"), new ServiceBusMessage("t1"));
    place.sendToTopic(topic, new ServiceBusMessage("later").setScheduledEnqueueTime(later));
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(queue).buildClient();
        ServiceBusReceiverClient other =
            place.builder().receiver().topicName(topic).subscriptionName("s").buildClient()) {
      receiver.deadLetter(Place.one(receiver));
      other.deadLetter(Place.one(other));
    }
    QueueRuntimeProperties one = client.getQueueRuntimeProperties(queue);
    TopicRuntimeProperties two = client.getTopicRuntimeProperties(topic);
    SubscriptionRuntimeProperties three = client.getSubscriptionRuntimeProperties(topic, "s");
    OffsetDateTime recently = OffsetDateTime.now().minusMinutes(5);
    boolean fresh = one.getCreatedAt().isAfter(recently) && one.getUpdatedAt().isAfter(recently);
    return Place.told(
        "queue",
            List.of(
                one.getActiveMessageCount(), one.getDeadLetterMessageCount(), one.getScheduledMessageCount(),
                one.getTransferMessageCount(), one.getTransferDeadLetterMessageCount(), one.getTotalMessageCount(),
                one.getSizeInBytes() > 0),
        "fresh", fresh && one.getAccessedAt().isAfter(recently),
        "topic", List.of(two.getSubscriptionCount(), two.getScheduledMessageCount(), two.getCreatedAt().isAfter(recently)),
        "subscription",
            List.of(
                three.getActiveMessageCount(), three.getDeadLetterMessageCount(), three.getTransferMessageCount(),
                three.getTotalMessageCount(), three.getCreatedAt().isAfter(recently)));
  }

  private static List<Object> words(List<AuthorizationRule> rules) {
    List<Object> found = new ArrayList<>();
    for (AuthorizationRule rule : rules) {
      List<String> rights = rule.getAccessRights().stream().map(AccessRights::toString).sorted().toList();
      found.add(List.of(rule.getKeyName(), rule.getPrimaryKey(), rule.getSecondaryKey(), rights));
    }
    return found;
  }

  private static Object accessRules(Place place) {
    String name = place.fresh();
    String one = "p".repeat(43) + "=";
    String two = "s".repeat(43) + "=";
    CreateQueueOptions options = new CreateQueueOptions();
    List<AccessRights> both = List.of(AccessRights.LISTEN, AccessRights.SEND);
    options.getAuthorizationRules().add(new SharedAccessAuthorizationRule("both", one, two, both));
    place.admin.createQueue(name, options);
    List<Object> made = words(place.admin.getQueue(name).getAuthorizationRules());
    QueueProperties got = place.admin.getQueue(name);
    got.getAuthorizationRules().add(new SharedAccessAuthorizationRule("listens", two, one, List.of(AccessRights.LISTEN)));
    place.admin.updateQueue(got);
    return Place.told("made", made, "more", words(place.admin.getQueue(name).getAuthorizationRules()));
  }

  private static Object refusals(Place place) {
    ServiceBusAdministrationClient client = place.admin;
    String queue = place.queue();
    String topic = place.topic("s");
    QueueProperties other = client.getQueue(queue);
    return Place.told(
        "queue twice", Place.refusal(() -> client.createQueue(queue)),
        "topic twice", Place.refusal(() -> client.createTopic(topic)),
        "topic as queue", Place.refusal(() -> client.createQueue(topic)),
        "subscription twice", Place.refusal(() -> client.createSubscription(topic, "s")),
        "rule twice", Place.refusal(() -> client.createRule(topic, "s", "$Default")),
        "no queue", Place.refusal(() -> client.getQueue("missing")),
        "no counts", Place.refusal(() -> client.getQueueRuntimeProperties("missing")),
        "no topic", Place.refusal(() -> client.getTopic("missing")),
        "no subscription", Place.refusal(() -> client.getSubscription(topic, "missing")),
        "no rule", Place.refusal(() -> client.getRule(topic, "s", "missing")),
        "delete queue", Place.refusal(() -> client.deleteQueue("missing")),
        "delete topic", Place.refusal(() -> client.deleteTopic("missing")),
        "delete subscription", Place.refusal(() -> client.deleteSubscription(topic, "missing")),
        "delete rule", Place.refusal(() -> client.deleteRule(topic, "s", "missing")),
        "in no topic", Place.refusal(() -> client.createSubscription("missing", "s")),
        "lock", Place.refusal(() -> client.updateQueue(other.setLockDuration(Duration.ofMinutes(6)))),
        "syntax", Place.refusal(() -> client.createRule(topic, "r", "s", new CreateRuleOptions(new SqlRuleFilter("a >")))));
  }

  private static Object refusalsAsync(Place place) {
    ServiceBusAdministrationAsyncClient client = place.asyncAdmin;
    String queue = place.queue();
    String topic = place.topic("s");
    return Place.told(
        "queue twice", Place.refusal(() -> client.createQueue(queue).block(Place.WAIT)),
        "subscription twice", Place.refusal(() -> client.createSubscription(topic, "s").block(Place.WAIT)),
        "no queue", Place.refusal(() -> client.getQueue("missing").block(Place.WAIT)),
        "no subscription", Place.refusal(() -> client.getSubscription(topic, "missing").block(Place.WAIT)),
        "no rule", Place.refusal(() -> client.getRule(topic, "s", "missing").block(Place.WAIT)),
        "delete queue", Place.refusal(() -> client.deleteQueue("missing").block(Place.WAIT)));
  }

  /** Messages and dead letters are forwarded as an entity was made to; it is told, and can be undone. */
  private static Object forwarding(Place place) throws Exception {
    ServiceBusAdministrationClient client = place.admin;
    String target = place.queue();
    String dead = place.queue();
    String from =
        place.queue(new CreateQueueOptions().setForwardTo(target).setForwardDeadLetteredMessagesTo(dead));
    String topic = place.topic();
    client.createSubscription(topic, "s", new CreateSubscriptionOptions().setForwardTo(target));
    place.send(from, new ServiceBusMessage("by queue"));
    place.sendToTopic(topic, new ServiceBusMessage("by topic"));
    boolean arrived = Place.becomes(() -> place.held(target).size() == 2);
    List<String> bodies = place.held(target).stream().sorted().toList();
    QueueProperties got = client.getQueue(from);
    boolean told = got.getForwardTo().endsWith(target) && got.getForwardDeadLetteredMessagesTo().endsWith(dead);
    client.updateQueue(got.setForwardTo(null));
    place.send(from, new ServiceBusMessage("stays"));
    try (ServiceBusReceiverClient receiver = place.builder().receiver().queueName(from).buildClient()) {
      receiver.deadLetter(Place.one(receiver));
    }
    boolean letter = Place.becomes(() -> place.held(dead).equals(List.of("stays")));
    return Place.told(
        "arrived", arrived, "bodies", bodies, "told", told, "undone", client.getQueue(from).getForwardTo() == null,
        "letter", letter);
  }

  /** A queue that is disabled one way or the other, and in use again. */
  private static Object disabled(Place place) {
    ServiceBusAdministrationClient client = place.admin;
    String queue = place.queue();
    List<String> found = new ArrayList<>();
    for (EntityStatus status : List.of(EntityStatus.SEND_DISABLED, EntityStatus.DISABLED, EntityStatus.ACTIVE)) {
      client.updateQueue(client.getQueue(queue).setStatus(status));
      found.add(status + " " + Place.refusal(() -> place.send(queue, new ServiceBusMessage("m"))));
    }
    return found;
  }

  private static Object namespace(Place place) {
    var found = place.admin.getNamespaceProperties();
    boolean same = found.getName().equals(place.asyncAdmin.getNamespaceProperties().block(Place.WAIT).getName());
    return Place.told("sku", found.getMessagingSku().toString(), "kind", found.getNamespaceType().toString(), "same", same);
  }
}
