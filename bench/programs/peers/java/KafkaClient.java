import java.time.Duration;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's own client; the settings are its own, by their names. */
final class KafkaClient extends Client {
    private static final Duration SILENCE = Duration.ofSeconds(30);

    private final String topic;
    private final Properties settings = new Properties();
    private final AtomicReference<Exception> failed = new AtomicReference<>();
    private final Callback reported = (metadata, error) -> {
        if (error != null) {
            failed.compareAndSet(null, error);
        }
    };
    private KafkaProducer<byte[], byte[]> producer;
    private KafkaConsumer<byte[], byte[]> consumer;

    KafkaClient(Map<String, String> given) {
        topic = given.remove("topic");
        settings.put("bootstrap.servers", given.remove("address"));
        settings.putAll(given);
    }

    @Override
    void send(long records) throws Exception {
        if (producer == null) {
            producer = new KafkaProducer<>(
                settings, new ByteArraySerializer(), new ByteArraySerializer());
        }
        for (long sent = 0; sent < records; sent++) {
            producer.send(new ProducerRecord<>(topic, nextValue()), reported);
        }
        producer.flush();
        if (failed.get() != null) {
            throw failed.get();
        }
    }

    @Override
    void receiveUntil(long total) {
        if (consumer == null) {
            settings.put("enable.auto.commit", "false");
            consumer = new KafkaConsumer<>(
                settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            Set<TopicPartition> all = Set.of(new TopicPartition(topic, 0));
            consumer.assign(all);
            consumer.seekToBeginning(all);
        }
        while (taken() < total) {
            ConsumerRecords<byte[], byte[]> polled = consumer.poll(SILENCE);
            if (polled.isEmpty()) {
                throw silence(total);
            }
            for (ConsumerRecord<byte[], byte[]> one : polled) {
                take(one.value());
            }
        }
    }

    @Override
    public void close() {
        if (producer != null) {
            producer.close();
        }
        if (consumer != null) {
            consumer.close();
        }
    }

    public static void main(String[] arguments) throws Exception {
        run(arguments, KafkaClient::new);
    }
}
