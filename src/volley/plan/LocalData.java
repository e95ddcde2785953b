// SPDX-License-Identifier: Apache-2.0
package volley;

import java.io.ByteArrayOutputStream;
import org.apache.arrow.vector.FieldVector;
import org.apache.arrow.vector.VectorSchemaRoot;
import org.apache.arrow.vector.dictionary.DictionaryProvider;
import org.apache.arrow.vector.ipc.ArrowStreamWriter;
import org.apache.spark.Dependency;
import org.apache.spark.Partition;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.api.java.JavaRDD;
import org.apache.spark.api.python.PythonRDD;
import org.apache.spark.api.python.SerDeUtil;
import org.apache.spark.rdd.MapPartitionsRDD;
import org.apache.spark.rdd.ParallelCollectionRDD;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.execution.RDDScanExec;
import org.apache.spark.sql.execution.arrow.ArrowWriter;
import org.apache.spark.sql.execution.python.EvaluatePython;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.storage.StorageLevel;

/**
 * Reads the rows that a program gave to createDataFrame, on the driver and without a job. Spark's own functions unpickle
 * and convert them, as they would in a task. Compiled like PlanReader, so it is Java without lambdas and type arguments.
 *
 *   ParallelCollectionRDD    pickled tuples, or Arrow batches
 *   PythonRDD                only of pickled tuples: pickles them again in larger batches; this is left out here
 *   MapPartitionsRDD ...     unpickles and converts
 */
public final class LocalData {
    private static final int BATCH_ROWS = 65536;
    private static final int ROWS_BETWEEN_CHECKS = 32;
    private static final long BATCH_BYTES = 8 << 20;

    private final long mostBytes;

    /** No more than about `mostBytes` are read of one RDD. */
    public LocalData(long mostBytes) throws Exception {
        this.mostBytes = mostBytes;
        // Loads what the first read needs: the classes of Arrow take longer than the rows.
        new Rows(new StructType().add("value", DataTypes.StringType), mostBytes).finish();
        SerDeUtil.initialize();
    }

    /** The rows; null if there are too many. Only for what createDataFrame made of local data. */
    public Found read(RDDScanExec scan) throws Exception {
        StructType schema = scan.schema();
        RDD source = scan.rdd();
        boolean pickled = false;
        while (!(source instanceof ParallelCollectionRDD)) {
            boolean again = source instanceof PythonRDD;
            if (again && pickled || !again && !(source instanceof MapPartitionsRDD)) {
                throw new IllegalStateException("not local data: " + source.getClass().getName());
            }
            pickled = pickled || again;
            source = parent(source);
        }
        RDD values = scan.rdd();
        scala.Function1 convert = null;
        if (pickled) {
            values = SerDeUtil.toJavaArray(SerDeUtil.pythonToJava(JavaRDD.fromRDD(source, null), true)).rdd();
            convert = EvaluatePython.makeFromJava(schema);
        }
        TaskContext context = (TaskContext) TaskContext$.MODULE$.empty();
        Rows rows = new Rows(schema, mostBytes);
        try {
            Partition[] partitions = values.partitions();
            StringBuilder counts = new StringBuilder();
            for (int i = 0; i < partitions.length; i++) {
                scala.collection.Iterator each = values.iterator(partitions[i], context);
                long count = 0;
                while (each.hasNext()) {
                    Object value = each.next();
                    rows.write((InternalRow) (convert == null ? value : convert.apply(value)));
                    count++;
                    if (rows.tooMany()) {
                        return null;
                    }
                }
                counts.append(i == 0 ? "" : ",").append(count);
            }
            byte[] found = rows.finish();
            return rows.tooMany() ? null : new Found(found, counts.toString());
        } finally {
            rows.close();
        }
    }

    /** Rows as an Arrow IPC stream, and how many of them are in each of Spark's partitions. */
    public static final class Found {
        private final byte[] stream;
        private final String counts;

        Found(byte[] stream, String counts) {
            this.stream = stream;
            this.counts = counts;
        }

        public byte[] stream() {
            return stream;
        }

        public String counts() {
            return counts;
        }
    }

    private static RDD parent(RDD rdd) {
        scala.collection.Seq dependencies = (scala.collection.Seq) rdd.dependencies();
        // What is persisted would be looked up in the block manager, or put there.
        if (dependencies.size() != 1 || !rdd.getStorageLevel().equals(StorageLevel.NONE())) {
            throw new IllegalStateException("not local data: " + rdd);
        }
        return ((Dependency) dependencies.apply(0)).rdd();
    }

    /** Writes rows as one Arrow IPC stream. */
    private static final class Rows {
        private final long mostBytes;
        private final ArrowWriter writer;
        private final ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        private final ArrowStreamWriter stream;
        private int rows = 0;

        Rows(StructType schema, long mostBytes) throws Exception {
            this.mostBytes = mostBytes;
            this.writer = ArrowWriter.create(schema, "UTC", false, false);
            this.stream = new ArrowStreamWriter(writer.root(), (DictionaryProvider) null, (java.io.OutputStream) bytes);
            stream.start();
        }

        void write(InternalRow row) throws Exception {
            writer.write(row);
            rows++;
            if (rows == BATCH_ROWS || rows % ROWS_BETWEEN_CHECKS == 0 && batchBytes() > BATCH_BYTES) {
                writeBatch();
            }
        }

        boolean tooMany() {
            return bytes.size() > mostBytes;
        }

        private long batchBytes() {
            // Spark's own sizeInBytes is not there before 4.0. Rows can be added after this.
            writer.finish();
            long bytes = 0;
            for (int i = 0; i < writer.root().getFieldVectors().size(); i++) {
                bytes += ((FieldVector) writer.root().getFieldVectors().get(i)).getBufferSize();
            }
            return bytes;
        }

        private void writeBatch() throws Exception {
            writer.finish();
            stream.writeBatch();
            writer.reset();
            rows = 0;
        }

        byte[] finish() throws Exception {
            if (rows > 0) {
                writeBatch();
            }
            stream.end();
            close();
            return bytes.toByteArray();
        }

        void close() {
            VectorSchemaRoot root = writer.root();
            root.close();
        }
    }
}
