import io.debezium.embedded.Connect;
import io.debezium.engine.ChangeEvent;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.format.Json;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The changes of one table by Debezium's engine: DebeziumRun PORT FOLDER TABLE ROWS connect|json.
 *
 * ROWS 0 notes where the server's log ends now, and what the table looks like, in FOLDER. Another number reads so many
 * changes from that place, and prints the rows and the seconds from the first change to the last. The engine's own start
 * does not count. User and password are in the environment.
 */
public final class DebeziumRun {
    private static final int WAIT_SECONDS = 170;

    private static Properties makeProperties(String port, Path folder, String table, boolean begin) {
        Properties properties = new Properties();
        properties.setProperty("name", "bench");
        properties.setProperty("connector.class", "io.debezium.connector.mariadb.MariaDbConnector");
        properties.setProperty("topic.prefix", "bench");
        properties.setProperty("database.hostname", "127.0.0.1");
        properties.setProperty("database.port", port);
        properties.setProperty("database.user", System.getenv("BENCH_USER"));
        properties.setProperty("database.password", System.getenv("BENCH_PASSWORD"));
        properties.setProperty("database.ssl.mode", "disable");
        properties.setProperty("database.server.id", "990");
        properties.setProperty("table.include.list", table);
        properties.setProperty("snapshot.mode", "no_data");
        properties.setProperty("snapshot.locking.mode", "none");
        properties.setProperty("include.schema.changes", "false");
        properties.setProperty("tombstones.on.delete", "false");
        properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.FileOffsetBackingStore");
        properties.setProperty("offset.storage.file.filename", folder.resolve("offsets").toString());
        properties.setProperty("schema.history.internal", "io.debezium.storage.file.history.FileSchemaHistory");
        properties.setProperty("schema.history.internal.file.filename", folder.resolve("history").toString());
        properties.setProperty("offset.flush.interval.ms", begin ? "0" : "60000");
        if (begin) {
            properties.setProperty("heartbeat.interval.ms", "200");
        }
        properties.setProperty("poll.interval.ms", "10");
        properties.setProperty("max.batch.size", "20480");
        properties.setProperty("max.queue.size", "81920");
        properties.setProperty("record.processing.threads", "2");
        properties.setProperty("record.processing.order", "ORDERED");
        properties.setProperty("converter.schemas.enable", "false");
        return properties;
    }

    public static void main(String[] words) throws Exception {
        Path folder = Path.of(words[1]);
        Path offsets = folder.resolve("offsets");
        long rows = Long.parseLong(words[3]);
        boolean begin = rows == 0;
        AtomicLong count = new AtomicLong(), first = new AtomicLong(), last = new AtomicLong();
        CountDownLatch done = new CountDownLatch(1);
        DebeziumEngine.CompletionCallback ended = (fine, message, error) -> {
            if (!fine) {
                System.err.println(message);
            }
            done.countDown();
        };
        Properties properties = makeProperties(words[0], folder, words[2], begin);
        DebeziumEngine<?> engine = words[4].equals("json")
            ? DebeziumEngine.create(Json.class).using(properties).using(ended).notifying(counting(rows, count, first, last, done)).build()
            : DebeziumEngine.create(Connect.class).using(properties).using(ended).notifying(counting(rows, count, first, last, done)).build();
        Executors.newSingleThreadExecutor(work -> {
            Thread thread = new Thread(work);
            thread.setDaemon(true);
            return thread;
        }).execute(engine);
        if (begin) {
            for (int turn = 0; turn < 300 && !(Files.exists(offsets) && Files.size(offsets) > 50); turn++) {
                Thread.sleep(100);
            }
            engine.close();
            Runtime.getRuntime().halt(Files.exists(offsets) && Files.size(offsets) > 50 ? 0 : 1);
        }
        done.await(WAIT_SECONDS, TimeUnit.SECONDS);
        System.out.printf(Locale.ROOT, "{\"rows\": %d, \"seconds\": %.4f}%n", count.get(), (last.get() - first.get()) / 1e9);
        System.out.flush();
        Runtime.getRuntime().halt(count.get() == rows ? 0 : 1);
    }

    private static <R> DebeziumEngine.ChangeConsumer<R> counting(
            long rows, AtomicLong count, AtomicLong first, AtomicLong last, CountDownLatch done) {
        return (records, committer) -> {
            first.compareAndSet(0, System.nanoTime());
            for (R record : records) {
                committer.markProcessed(record);
            }
            committer.markBatchFinished();
            if (rows > 0 && count.addAndGet(records.size()) >= rows) {
                last.set(System.nanoTime());
                done.countDown();
            }
        };
    }
}
