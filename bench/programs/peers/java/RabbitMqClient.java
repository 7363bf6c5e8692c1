import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import com.rabbitmq.client.MessageProperties;
import java.io.IOException;
import java.util.Map;

/**
 * RabbitMQ's own client for AMQP, with a classic queue. {@code persistent} and {@code confirms} are
 * for messages that are sent: confirms come asynchronously, and the last is waited for. Who reads acknowledges every {@code ack_every}th message with those before it, or
 * lets the broker do so with 0, and has {@code prefetch} on the way.
 */
final class RabbitMqClient extends Client {
    private final Map<String, String> settings;
    private final Connection connection;
    private final Channel channel;
    private final String queue;
    private boolean consumes;

    RabbitMqClient(Map<String, String> settings) throws Exception {
        this.settings = settings;
        queue = settings.get("topic");
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri("amqp://" + settings.get("address"));
        connection = factory.newConnection();
        channel = connection.createChannel();
        channel.queueDeclare(queue, true, false, false, Map.of());
        if (is("confirms")) {
            channel.confirmSelect();
        }
    }

    private boolean is(String name) {
        return Boolean.parseBoolean(settings.get(name));
    }

    @Override
    void send(long records) throws Exception {
        AMQP.BasicProperties properties = is("persistent")
            ? MessageProperties.MINIMAL_PERSISTENT_BASIC : MessageProperties.MINIMAL_BASIC;
        for (long sent = 0; sent < records; sent++) {
            channel.basicPublish("", queue, properties, nextValue());
        }
        if (is("confirms")) {
            channel.waitForConfirmsOrDie();
        } else { // the broker answers this after all that came before it in the channel
            channel.queueDeclarePassive(queue);
        }
    }

    @Override
    void receiveUntil(long total) throws Exception {
        if (!consumes) {
            consume();
        }
        waitUntilTaken(total);
    }

    private void consume() throws IOException {
        int every = Integer.parseInt(settings.get("ack_every"));
        channel.basicQos(Integer.parseInt(settings.get("prefetch")));
        consumes = true;
        channel.basicConsume(queue, every == 0, "", false, false, Map.of(),
            new DefaultConsumer(channel) {
                @Override
                public void handleDelivery(
                        String tag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                        throws IOException {
                    take(body);
                    if (every > 0 && envelope.getDeliveryTag() % every == 0) {
                        channel.basicAck(envelope.getDeliveryTag(), true);
                    }
                }
            });
    }

    @Override
    public void close() throws IOException {
        if (consumes) { // all of it: what was read is of no more use
            channel.queueDelete(queue);
        }
        connection.close();
    }

    public static void main(String[] arguments) throws Exception {
        run(arguments, RabbitMqClient::new);
    }
}
