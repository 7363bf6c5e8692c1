import java.io.File;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;

/** A broker of ActiveMQ's, with its own defaults: arguments are address, directory, disk syncs. */
final class ActiveMqBroker {
    public static void main(String[] arguments) throws Exception {
        KahaDBPersistenceAdapter store = new KahaDBPersistenceAdapter();
        store.setDirectory(new File(arguments[1]));
        store.setJournalDiskSyncStrategy(arguments[2]);
        BrokerService broker = new BrokerService();
        broker.setBrokerName("bench");
        broker.setUseJmx(false);
        broker.setPersistenceAdapter(store);
        // As conf/activemq.xml of its distribution.
        broker.getSystemUsage().getMemoryUsage().setPercentOfJvmHeap(70);
        broker.addConnector("tcp://" + arguments[0]);
        broker.start(); // it stops in a shutdown hook of its own
        broker.waitUntilStopped();
    }
}
