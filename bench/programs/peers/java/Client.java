import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

/**
 * A client's process: arguments {@code key=value} in, one line of JSON out, as bench/clients/work.py
 * has them. The clock of a sender starts when it has connected and sent its first records, that of a
 * reader with the first record.
 */
abstract class Client implements AutoCloseable {
    interface Factory {
        Client make(Map<String, String> settings) throws Exception;
    }

    private static final int VALUES = 1_000; // different ones, as in work.py
    private static final int SUMMED_BYTES = 8;
    private static final long SILENCE_MS = 30_000;
    private static final int SILENCE_CODE = 3; // as java_clients.py knows it

    private byte[][] values;
    private int next;
    private long wanted;
    private long count;
    private long checksum;
    private long started;
    private long cpuStarted;

    /** Hands over so many of the {@code nextValue}s, and waits until all are acknowledged. */
    abstract void send(long records) throws Exception;

    /** Lets {@code take} have records, until it has had so many since the client's start. */
    abstract void receiveUntil(long total) throws Exception;

    final byte[] nextValue() {
        byte[] value = values[next];
        next = next + 1 == VALUES ? 0 : next + 1;
        return value;
    }

    final synchronized void take(byte[] value) {
        if (count == 0) {
            start();
        }
        checksum += ByteBuffer.wrap(value).getLong(value.length - SUMMED_BYTES);
        if (++count >= wanted) {
            notifyAll();
        }
    }

    final synchronized long taken() {
        return count;
    }

    /** For clients that are called back, by a thread of their own. */
    final synchronized void waitUntilTaken(long total) throws InterruptedException {
        wanted = total;
        while (count < total) {
            long before = count;
            wait(SILENCE_MS);
            if (count == before) {
                throw silence(total);
            }
        }
    }

    final SilenceException silence(long total) {
        return new SilenceException(
            "Expected " + total + " records, got no more after " + taken() + ".");
    }

    /** The server delivers no more, though it has more. */
    static final class SilenceException extends RuntimeException {
        SilenceException(String message) {
            super(message);
        }
    }

    /** Ends the process in any case: a library's threads may outlive what failed. */
    static void run(String[] arguments, Factory factory) {
        try {
            runWith(arguments, factory);
        } catch (SilenceException silence) {
            System.err.println(silence.getMessage());
            Runtime.getRuntime().halt(SILENCE_CODE);
        } catch (Throwable error) {
            error.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private static void runWith(String[] arguments, Factory factory) throws Exception {
        Map<String, String> settings = new HashMap<>();
        for (String argument : arguments) {
            int mark = argument.indexOf('=');
            settings.put(argument.substring(0, mark), argument.substring(mark + 1));
        }
        String what = settings.remove("does");
        long records = Long.parseLong(settings.remove("records"));
        long warmUp = Long.parseLong(settings.remove("warm_up"));
        int valueBytes = Integer.parseInt(settings.remove("value_bytes"));
        try (Client client = factory.make(settings)) {
            client.values = new byte[VALUES][];
            for (int number = 0; number < VALUES; number++) {
                String text = String.format("%0" + valueBytes + "d", number);
                client.values[number] = text.getBytes(StandardCharsets.US_ASCII);
            }
            if (what.equals("send")) {
                client.send(warmUp);
                System.gc();
                client.next = 0;
                client.start();
                client.send(records);
            } else {
                client.receiveUntil(records);
                warmUp = 1;
                records = client.taken() - warmUp;
            }
            double seconds = (System.nanoTime() - client.started) / 1e9;
            double cpuSeconds = (cpuNanos() - client.cpuStarted) / 1e9;
            System.out.printf(
                "{\"records\": %d, \"warm_up\": %d, \"seconds\": %s, \"cpu_seconds\": %s,"
                    + " \"checksum\": %s}%n",
                records, warmUp, seconds, cpuSeconds, Long.toUnsignedString(client.checksum));
        }
    }

    private void start() {
        cpuStarted = cpuNanos();
        started = System.nanoTime();
    }

    private static long cpuNanos() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }
}
