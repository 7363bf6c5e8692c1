import com.rabbitmq.stream.Address;
import com.rabbitmq.stream.Consumer;
import com.rabbitmq.stream.Environment;
import com.rabbitmq.stream.OffsetSpecification;
import com.rabbitmq.stream.Producer;
import com.rabbitmq.stream.ProducerBuilder;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

/**
 * RabbitMQ's client for streams, with their own protocol. {@code sub_entry_size} messages are stored
 * as one entry; {@code batch_size} and {@code unconfirmed} are the producer's. All are confirmed.
 */
final class RabbitMqStreamClient extends Client {
    private final Map<String, String> settings;
    private final Environment environment;
    private final String stream;
    private final AtomicLong confirmed = new AtomicLong();
    private Producer producer;
    private long handedOver;
    private Consumer consumer;

    RabbitMqStreamClient(Map<String, String> settings) {
        this.settings = settings;
        stream = settings.get("topic");
        String[] parts = settings.get("address").split(":");
        Address address = new Address(parts[0], Integer.parseInt(parts[1]));
        environment = Environment.builder()
            .host(address.host()).port(address.port())
            .addressResolver(told -> address) // the node tells the name of its machine
            .build();
    }

    private static final class Failed extends RuntimeException {
        Failed(int code) {
            super("RabbitMQ did not take a message: code " + code + ".");
        }
    }

    private volatile Failed failed;

    @Override
    void send(long records) throws Exception {
        if (producer == null) {
            environment.streamCreator().stream(stream).create();
            producer = tuned(environment.producerBuilder().stream(stream)).build();
        }
        for (long sent = 0; sent < records; sent++) {
            producer.send(producer.messageBuilder().addData(nextValue()).build(), status -> {
                if (!status.isConfirmed()) {
                    failed = new Failed(status.getCode());
                }
                confirmed.incrementAndGet();
            });
        }
        handedOver += records;
        while (confirmed.get() < handedOver) {
            Thread.sleep(1);
        }
        if (failed != null) {
            throw failed;
        }
    }

    private ProducerBuilder tuned(ProducerBuilder builder) {
        if (settings.containsKey("sub_entry_size")) {
            builder.subEntrySize(Integer.parseInt(settings.get("sub_entry_size")));
        }
        if (settings.containsKey("batch_size")) {
            builder.batchSize(Integer.parseInt(settings.get("batch_size")));
        }
        if (settings.containsKey("unconfirmed")) {
            builder.maxUnconfirmedMessages(Integer.parseInt(settings.get("unconfirmed")));
        }
        return builder;
    }

    @Override
    void receiveUntil(long total) throws Exception {
        consumer = environment.consumerBuilder()
            .stream(stream)
            .offset(OffsetSpecification.first())
            .messageHandler((context, message) -> take(message.getBodyAsBinary()))
            .build();
        waitUntilTaken(total);
    }

    @Override
    public void close() {
        if (consumer != null) { // all of it: what was read is of no more use
            consumer.close();
            environment.deleteStream(stream);
        }
        environment.close();
    }

    public static void main(String[] arguments) throws Exception {
        run(arguments, RabbitMqStreamClient::new);
    }
}
