import jakarta.jms.BytesMessage;
import jakarta.jms.DeliveryMode;
import jakarta.jms.JMSException;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import java.util.Map;
import org.apache.activemq.ActiveMQConnection;
import org.apache.activemq.ActiveMQConnectionFactory;
import org.apache.activemq.command.ActiveMQQueue;

/**
 * ActiveMQ's own client, by JMS, with the options of connections that {@code options} names. Sends
 * go in transactions of {@code transaction} messages, without any with 0; they are persistent.
 * {@code acknowledge} is the mode of the session that reads.
 */
final class ActiveMqClient extends Client {
    private final ActiveMQConnection connection;
    private final boolean asynchronous;
    private final int transaction;
    private final Session session;
    private final Queue queue;
    private MessageProducer producer;
    private boolean consumes;

    ActiveMqClient(Map<String, String> settings) throws JMSException {
        ActiveMQConnectionFactory factory = new ActiveMQConnectionFactory(
            "tcp://" + settings.get("address") + "?" + settings.get("options"));
        connection = (ActiveMQConnection) factory.createConnection();
        asynchronous = connection.isUseAsyncSend();
        transaction = Integer.parseInt(settings.getOrDefault("transaction", "0"));
        int mode = settings.getOrDefault("acknowledge", "auto").equals("dups_ok")
            ? Session.DUPS_OK_ACKNOWLEDGE : Session.AUTO_ACKNOWLEDGE;
        session = connection.createSession(
            transaction > 0, transaction > 0 ? Session.SESSION_TRANSACTED : mode);
        queue = session.createQueue(settings.get("topic"));
        connection.start();
    }

    @Override
    void send(long records) throws JMSException {
        if (producer == null) {
            producer = session.createProducer(queue);
            producer.setDeliveryMode(DeliveryMode.PERSISTENT);
        }
        for (long sent = 1; sent <= records; sent++) {
            BytesMessage message = session.createBytesMessage();
            message.writeBytes(nextValue());
            // The broker answers the last one after all that came before it in the connection.
            connection.setUseAsyncSend(asynchronous && sent < records);
            producer.send(message);
            if (transaction > 0 && (sent % transaction == 0 || sent == records)) {
                session.commit();
            }
        }
    }

    @Override
    void receiveUntil(long total) throws Exception {
        if (!consumes) {
            consumes = true;
            session.createConsumer(queue).setMessageListener(message -> {
                try {
                    BytesMessage bytes = (BytesMessage) message;
                    byte[] value = new byte[(int) bytes.getBodyLength()];
                    bytes.readBytes(value);
                    take(value);
                } catch (JMSException error) {
                    throw new IllegalStateException(error);
                }
            });
        }
        waitUntilTaken(total);
    }

    @Override
    public void close() throws JMSException {
        if (consumes) { // all of it: what was read is of no more use
            session.close();
            connection.destroyDestination((ActiveMQQueue) queue);
        }
        connection.close();
    }

    public static void main(String[] arguments) throws Exception {
        run(arguments, ActiveMqClient::new);
    }
}
