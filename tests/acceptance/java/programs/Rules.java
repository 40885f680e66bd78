import com.azure.messaging.servicebus.ServiceBusMessage;
import com.azure.messaging.servicebus.ServiceBusReceivedMessage;
import com.azure.messaging.servicebus.ServiceBusReceiverClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerAsyncClient;
import com.azure.messaging.servicebus.ServiceBusRuleManagerClient;
import com.azure.messaging.servicebus.administration.models.CorrelationRuleFilter;
import com.azure.messaging.servicebus.administration.models.CreateRuleOptions;
import com.azure.messaging.servicebus.administration.models.FalseRuleFilter;
import com.azure.messaging.servicebus.administration.models.RuleAction;
import com.azure.messaging.servicebus.administration.models.RuleFilter;
import com.azure.messaging.servicebus.administration.models.RuleProperties;
import com.azure.messaging.servicebus.administration.models.SqlRuleAction;
import com.azure.messaging.servicebus.administration.models.SqlRuleFilter;
import com.azure.messaging.servicebus.administration.models.TrueRuleFilter;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

/** The rule manager: rules of a subscription over AMQP. */
final class Rules {
  static final Map<String, Scenarios.Scenario> ALL =
      Map.of(
          "rules-kinds", Rules::kinds,
          "rules-async", Rules::async,
          "rules-choose", Rules::choose,
          "rules-actions", Rules::actions,
          "rules-refusals", Rules::refusals,
          "rules-properties", Rules::properties);

  private Rules() {}

  private static ServiceBusRuleManagerClient manager(Place place, String topic, String subscription) {
    return place.builder().ruleManager().topicName(topic).subscriptionName(subscription).buildClient();
  }

  /** Kind of a filter and what is in it. */
  private static String filter(RuleFilter filter) {
    if (filter instanceof TrueRuleFilter || filter instanceof FalseRuleFilter) {
      return filter.getClass().getSimpleName();
    }
    if (filter instanceof SqlRuleFilter sql) {
      return "sql " + sql.getSqlExpression();
    }
    CorrelationRuleFilter one = (CorrelationRuleFilter) filter;
    List<Object> fields =
        Arrays.asList(
            one.getContentType(), one.getCorrelationId(), one.getLabel(), one.getMessageId(), one.getReplyTo(),
            one.getReplyToSessionId(), one.getSessionId(), one.getTo());
    return "correlation " + fields + " " + new TreeMap<>(one.getProperties());
  }

  private static List<String> rule(RuleProperties rule) {
    RuleAction action = rule.getAction();
    String done = action instanceof SqlRuleAction sql ? sql.getSqlExpression() : "none";
    return List.of(rule.getName(), filter(rule.getFilter()), done);
  }

  private static List<List<String>> listed(Iterable<RuleProperties> rules) {
    List<List<String>> found = new ArrayList<>();
    rules.forEach(one -> found.add(rule(one)));
    found.sort((one, other) -> one.get(0).compareTo(other.get(0)));
    return found;
  }

  /** One rule of each kind is made, told, and deleted. */
  private static Object kinds(Place place) {
    String topic = place.topic("s");
    try (ServiceBusRuleManagerClient manager = manager(place, topic, "s")) {
      manager.createRule("sql", new CreateRuleOptions(new SqlRuleFilter("size > 3")));
      manager.createRule("action", new CreateRuleOptions(new TrueRuleFilter()).setAction(new SqlRuleAction("SET a = 1")));
      manager.createRule("none", new CreateRuleOptions(new FalseRuleFilter()));
      CorrelationRuleFilter whole =
          new CorrelationRuleFilter("c").setContentType("t").setLabel("l").setMessageId("m").setReplyTo("r");
      whole.setReplyToSessionId("rs").setSessionId("s").setTo("to").getProperties().put("word", "blue");
      manager.createRule("whole", new CreateRuleOptions(whole));
      manager.createRule("id", new CreateRuleOptions(new CorrelationRuleFilter("only")));
      List<List<String>> all = listed(manager.listRules());
      for (String name : List.of("$Default", "sql", "action", "whole", "id")) {
        manager.deleteRule(name);
      }
      return Place.told("all", all, "left", listed(manager.listRules()));
    }
  }

  private static Object async(Place place) {
    String topic = place.topic("s");
    try (ServiceBusRuleManagerAsyncClient manager =
        place.builder().ruleManager().topicName(topic).subscriptionName("s").buildAsyncClient()) {
      CorrelationRuleFilter filter = new CorrelationRuleFilter();
      filter.getProperties().put("word", "blue");
      List<List<String>> all =
          listed(
              manager
                  .createRule("blue", new CreateRuleOptions(filter))
                  .then(manager.createRule("big", new CreateRuleOptions(new SqlRuleFilter("size > 3"))))
                  .thenMany(manager.listRules())
                  .collectList()
                  .block(Place.WAIT));
      List<List<String>> left =
          listed(
              manager
                  .deleteRule("$Default")
                  .then(manager.deleteRule("blue"))
                  .thenMany(manager.listRules())
                  .collectList()
                  .block(Place.WAIT));
      // The other interface lists the same rules.
      return Place.told("all", all, "left", left, "http", listed(place.admin.listRules(topic, "s")));
    }
  }

  private static ServiceBusMessage message(String body, String word, int size) {
    ServiceBusMessage message = new ServiceBusMessage(body).setSubject(word).setCorrelationId("c-" + word);
    message.getApplicationProperties().put("word", word);
    message.getApplicationProperties().put("size", size);
    return message;
  }

  private static List<String> taken(Place place, String topic, String subscription) {
    List<String> bodies = new ArrayList<>();
    try (ServiceBusReceiverClient receiver =
        place.builder().receiver().topicName(topic).subscriptionName(subscription).buildClient()) {
      bodies.addAll(Place.held(receiver));
    }
    return bodies.stream().sorted().toList();
  }

  /** What subscriptions with different filters get of the same messages. */
  private static Object choose(Place place) {
    Map<String, RuleFilter> filters = new TreeMap<>();
    filters.put("sql", new SqlRuleFilter("word = 'blue' AND size >= 5"));
    filters.put("system", new SqlRuleFilter("sys.Label LIKE 'r%' OR sys.CorrelationId = 'c-green'"));
    filters.put("label", new CorrelationRuleFilter().setLabel("red"));
    CorrelationRuleFilter both = new CorrelationRuleFilter("c-blue");
    both.getProperties().put("size", 7);
    filters.put("both", both);
    filters.put("false", new FalseRuleFilter());
    filters.put("true", new TrueRuleFilter());
    String topic = place.topic(filters.keySet().toArray(String[]::new));
    filters.forEach(
        (name, filter) -> {
          try (ServiceBusRuleManagerClient manager = manager(place, topic, name)) {
            manager.deleteRule("$Default");
            manager.createRule("own", new CreateRuleOptions(filter));
          }
        });
    place.sendToTopic(topic, message("b3", "blue", 3), message("b7", "blue", 7), message("r7", "red", 7), message("g1", "green", 1));
    Map<String, Object> found = new TreeMap<>();
    filters.keySet().forEach(name -> found.put(name, taken(place, topic, name)));
    return found;
  }

  /** An action changes the copy of its rule; two rules with actions make two copies. */
  private static Object actions(Place place) {
    String topic = place.topic("s");
    try (ServiceBusRuleManagerClient manager = manager(place, topic, "s")) {
      manager.deleteRule("$Default");
      RuleAction action = new SqlRuleAction("SET sys.Label = 'changed'; SET size = size + 1; REMOVE word");
      manager.createRule("changing", new CreateRuleOptions(new SqlRuleFilter("size > 3")).setAction(action));
      manager.createRule("marking", new CreateRuleOptions(new TrueRuleFilter()).setAction(new SqlRuleAction("SET mark = 'm'")));
      place.sendToTopic(topic, message("big", "blue", 7), message("small", "blue", 1));
    }
    List<String> found = new ArrayList<>();
    try (ServiceBusReceiverClient receiver =
        place.builder().receiver().topicName(topic).subscriptionName("s").buildClient()) {
      for (ServiceBusReceivedMessage message : Place.received(receiver, 3)) {
        receiver.complete(message);
        Map<String, Object> words = new TreeMap<>(message.getApplicationProperties());
        words.keySet().retainAll(List.of("size", "word", "mark"));
        found.add(message.getBody() + " " + message.getSubject() + " " + words);
      }
    }
    return found.stream().sorted().toList();
  }

  private static Object refusals(Place place) {
    String topic = place.topic("s");
    try (ServiceBusRuleManagerClient manager = manager(place, topic, "s");
        ServiceBusRuleManagerClient nowhere = manager(place, topic, "missing")) {
      CreateRuleOptions options = new CreateRuleOptions(new SqlRuleFilter("size > 3"));
      manager.createRule("twice", options);
      return Place.told(
          "twice", Place.refusal(() -> manager.createRule("twice", options)),
          "missing", Place.refusal(() -> manager.deleteRule("missing")),
          "syntax", Place.refusal(() -> manager.createRule("bad", new CreateRuleOptions(new SqlRuleFilter("size >")))),
          "nowhere", Place.refusal(() -> nowhere.createRule("rule", options)),
          "left", listed(manager.listRules()).size());
    }
  }

  /** Application properties of a filter keep their types. */
  private static Object properties(Place place) {
    String topic = place.topic("s");
    CorrelationRuleFilter filter = new CorrelationRuleFilter();
    Map<String, Object> values = new TreeMap<>();
    values.put("text", "blue");
    values.put("int", 7);
    values.put("long", 7_000_000_000L);
    values.put("double", 1.5);
    values.put("bool", true);
    filter.getProperties().putAll(values);
    try (ServiceBusRuleManagerClient manager = manager(place, topic, "s")) {
      manager.deleteRule("$Default");
      manager.createRule("typed", new CreateRuleOptions(filter));
      Map<String, Object> kinds = new TreeMap<>();
      RuleProperties rule = manager.listRules().stream().findFirst().orElseThrow();
      ((CorrelationRuleFilter) rule.getFilter())
          .getProperties()
          .forEach((name, value) -> kinds.put(name, value.getClass().getSimpleName() + " " + value));
      ServiceBusMessage fits = new ServiceBusMessage("fits");
      fits.getApplicationProperties().putAll(values);
      ServiceBusMessage differs = new ServiceBusMessage("differs");
      differs.getApplicationProperties().putAll(values);
      differs.getApplicationProperties().put("bool", false);
      place.sendToTopic(topic, fits, differs);
      return Place.told("kinds", kinds, "taken", taken(place, topic, "s"));
    }
  }
}
