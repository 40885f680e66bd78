import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import org.apache.activemq.artemis.api.core.RoutingType;
import org.apache.activemq.artemis.core.config.Configuration;
import org.apache.activemq.artemis.core.config.impl.ConfigurationImpl;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.settings.impl.AddressFullMessagePolicy;
import org.apache.activemq.artemis.core.settings.impl.AddressSettings;

/**
 * Apache ActiveMQ Artemis as a peer of the benchmark: one broker in this process, AMQP 1.0 on a free port of 127.0.0.1.
 *
 * <p>Started as {@code ArtemisPeer DATA_FOLDER READY_FILE NAME=VALUE...}. The names are those of {@code SETTINGS} in
 * {@code benchmarks/artemis_peer.py}, which is the only place that has values. When the broker takes connections, the
 * ready file holds its port, the version, and the kind of journal that it really has. SIGTERM ends it.
 */
public final class ArtemisPeer {
    private static final long NANOSECONDS_IN_A_MILLISECOND = 1_000_000;


    private ArtemisPeer() {}

    public static void main(String[] arguments) throws Exception {
        Path data = Path.of(arguments[0]);
        Path ready = Path.of(arguments[1]);
        Map<String, String> given = new TreeMap<>();
        for (int at = 2; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            given.put(pair[0], pair[1]);
        }
        EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
        broker.setConfiguration(configuration(data, given));
        broker.start();
        // Without libaio Artemis takes its other journal and says so in a log only.
        String journal = broker.getActiveMQServer().getConfiguration().getJournalType().toString();
        int port = broker.getActiveMQServer().getRemotingService().getAcceptor("amqp").getActualPort();
        if (port == 0) {
            throw new IllegalStateException("the broker does not listen; its log says why");
        }
        String version = broker.getActiveMQServer().getVersion().getFullVersion();
        Path partial = ready.resolveSibling(ready.getFileName() + ".partial");
        Files.writeString(
                partial,
                String.format(
                        "{\"amqp_port\": %d, \"version\": \"%s\", \"journal\": \"%s\"}%n", port, version, journal));
        Files.move(partial, ready, StandardCopyOption.ATOMIC_MOVE);
        CountDownLatch end = new CountDownLatch(1);
        Runtime.getRuntime()
                .addShutdownHook(
                        new Thread(
                                () -> {
                                    try {
                                        broker.stop();
                                    } catch (Exception error) {
                                        error.printStackTrace();
                                    }
                                }));
        end.await();
    }

    private static Configuration configuration(Path data, Map<String, String> given) throws Exception {
        int timeout = (int) (Double.parseDouble(given.get("buffer-timeout-ms")) * NANOSECONDS_IN_A_MILLISECOND);
        int buffer = Integer.parseInt(given.get("buffer-bytes"));
        Configuration configuration =
                new ConfigurationImpl()
                        .setName("bench")
                        .setPersistenceEnabled(true)
                        .setSecurityEnabled(false)
                        .setJMXManagementEnabled(false)
                        .setJournalType(JournalType.valueOf(given.get("journal")))
                        .setJournalDatasync(true)
                        .setJournalSyncTransactional(true)
                        .setJournalSyncNonTransactional(true)
                        .setJournalBufferTimeout_NIO(timeout)
                        .setJournalBufferTimeout_AIO(timeout)
                        .setJournalBufferSize_NIO(buffer)
                        .setJournalBufferSize_AIO(buffer)
                        .setJournalFileSize(Integer.parseInt(given.get("journal-file-bytes")))
                        .setJournalMinFiles(Integer.parseInt(given.get("journal-files")))
                        .setJournalPoolFiles(Integer.parseInt(given.get("journal-files")))
                        .setJournalDirectory(data.resolve("journal").toString())
                        .setBindingsDirectory(data.resolve("bindings").toString())
                        .setPagingDirectory(data.resolve("paging").toString())
                        .setLargeMessagesDirectory(data.resolve("large").toString())
                        .setMaxDiskUsage(-1)
                        .setGlobalMaxSize(-1)
                        .setMessageExpiryScanPeriod(-1)
                        .addAcceptorConfiguration("amqp", acceptor(given));
        configuration.addAddressSetting(
                "#",
                new AddressSettings()
                        .setAutoCreateQueues(true)
                        .setAutoCreateAddresses(true)
                        .setAutoDeleteQueues(false)
                        .setAutoDeleteAddresses(false)
                        .setDefaultAddressRoutingType(RoutingType.ANYCAST)
                        .setDefaultQueueRoutingType(RoutingType.ANYCAST)
                        .setAddressFullMessagePolicy(AddressFullMessagePolicy.PAGE)
                        .setMaxSizeBytes(-1)
                        .setMaxSizeMessages(-1));
        return configuration;
    }

    private static String acceptor(Map<String, String> given) {
        String credits = given.get("amqp-credits");
        String low = given.get("amqp-low-credits");
        return "tcp://127.0.0.1:0?protocols=AMQP;amqpCredits=" + credits + ";amqpLowCredits=" + low
                + ";amqpDuplicateDetection=false;useEpoll=" + given.get("epoll")
                + ";remotingThreads=" + given.get("remoting-threads");
    }
}
